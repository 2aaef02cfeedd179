"""Execution memory: store tasks as event logs, and carry out the operations on them."""
