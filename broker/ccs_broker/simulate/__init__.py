"""The simulator: the ledger's own scripts on a virtual clock, with devices that are modelled instead of bought."""
