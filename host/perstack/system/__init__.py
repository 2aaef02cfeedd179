"""Access to the operating system and the event loop, below the ports: nothing here knows Jobs, Runs or plugins.

files.py                    durable and atomic writes; locks that the kernel releases when their holder dies; opening of
                            regular files only, never of a pipe or device
processes.py                programs that end with the process that started them: through their group
                            (process_groups.py), or through a guard after a SIGKILL (process_guard.py)
git_targets.py              files that git would execute or read settings from
concurrency.py              work that a cancellation must not interrupt, blocking calls, tasks
clock.py, user.py           time of day; the user, and the user's directories
"""
