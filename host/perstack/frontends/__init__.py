"""The front doors: each parses input, calls Host, shows events, and does nothing else."""
