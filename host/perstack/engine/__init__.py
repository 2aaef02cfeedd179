"""The engine performs what the core decides: it drives Runs, calls models and tools, and writes logs."""
