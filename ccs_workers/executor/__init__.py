"""The executor: gives each claimed job a context of its own and an engine to run on, and ends it exactly once."""
