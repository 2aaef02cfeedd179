"""The operating system and the event loop: files, locks, processes, threads, the clock, the user. Imports no port."""
