"""Schedules: Jobs that start at times, and the scheduler of all that is due.

`decide` returns the next step of a schedule from its state and the times of its cron line: start, skip or queue an
occurrence, start a lost Job again, or continue one. `schedules` performs it; the event is appended at the version on
which it was decided, so each occurrence starts once, however many machines try. Of missed occurrences only the latest
is started.

`scheduler` looks for everything that is due: tasks whose time, answer or condition has come, Jobs and series that
paused for a rate limit, and occurrences. It runs in `task run-due`, and in every worker.

`decide` and `schedule` (events, state, TRANSITIONS) are pure.
"""
