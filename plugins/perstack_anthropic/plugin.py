"""Registration with the host."""
