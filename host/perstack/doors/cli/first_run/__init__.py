"""Commands for first use, before anything is set up. Each module is imported when its command is called."""
