"""Processes that are killed, and systems that fail, at a place of your choice; and what must hold after that.

`faults` counts what a process changes on disk and fails at the n-th; `victims` starts such processes; `evidence` reads
what a Job has and compares it; `assault` puts them together. `perstack chaos` is made of it.
"""
