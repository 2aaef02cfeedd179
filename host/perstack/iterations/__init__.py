"""Series of iterations: an Expert runs again and again until an evaluator's score is good enough.

`next_step` decides from the state of a series which Job to run or result to measure; `series_driver` performs that and
appends an event for each outcome; `evolve` computes the state from the events. So a series that was killed resumes by
reading its log, and ids of Jobs follow from the series and the iteration, so that a repeated step finds its Job.

An evaluator is a command or a Python function of the definition: `commands` and `evaluator_process` run it with few
variables, since it may run what a model has written. Conditions of tasks run the same way. `programs`, which other
features use too, runs one command of a definition to its end, within a time and a size.

A new event needs a model and a row of TRANSITIONS in `state`, and a case in `evolve`. `evolve`, `next_step` and
`state` are pure.
"""
