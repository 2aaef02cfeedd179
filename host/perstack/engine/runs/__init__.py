"""Drive Runs: the loop, and what it does for each command."""
