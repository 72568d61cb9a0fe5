"""Who may use how much memory of the worker's device: reserved in bytes before anything starts, released once."""
