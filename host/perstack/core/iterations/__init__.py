"""A series of iterations of one Expert: its facts, its state, and what is to be done next. Pure."""
