"""A task that agents pause and resume: its facts, its state, and what may be done with it. Pure."""
