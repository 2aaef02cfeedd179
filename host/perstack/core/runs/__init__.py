"""A Run: its state, the facts that change it, and what is left to do. Pure."""
