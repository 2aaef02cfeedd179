"""Crash tests: kill processes or fail their system calls at chosen places, and check what must hold afterwards.

`faults` counts the changes that a process makes on disk and fails at the n-th; `processes` starts such processes,
forked by `fork_server`; `experiment` drives a Job through them and compares what is stored with an undisturbed Job.
"""
