"""Recordings of Jobs: made from events, and played in place of models, tools and people.

A recording is one JSON file (`model`), made from a Job's log with secrets masked (`make`, `job_exports`), and played by
the provider `recorded` (`play`). Playback runs the ordinary loop: only replies and results come from the file; every
decision is made again and compared, so a test repeats a Job without a network.

The kernel knows two protocols of this package, and imports neither module: `engine.runs.playback_protocol`
(`run_playback` replaces tools, questions and texts of a Run) and `engine.jobs.recorded_answers_protocol`
(`answer_playback` speaks for the person of a stopped Job). A recording counts as a person's consent only if the caller
named it: a definition must not bring consent.

`past_calls` and `recorded_calls` read the calls of Jobs back from their logs, for replays and backtests of rules.
`model`, `make`, `play` and `past_calls` are pure.
"""
