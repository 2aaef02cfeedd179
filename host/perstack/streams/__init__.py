"""Iterate over a Job while it is driven, and answer its questions in the loop: `async for event in host.stream(…)`.

`events` has the six kinds of events that a program matches, and `StreamReader`, which makes them of a Job's events; it
is pure. `job_stream` drives the Job in a task, queues what the events show, and gives it to the iterator.

Leaving the loop interrupts the Job, as cancelling `run` does: the task knows the queue and not the stream, so a stream
without references is collected and cancels it. A question ends no stream: an answer by `Host.answer` finds the stream
that asked (`Streams.asking`), starts the next task with the same queue, and the iteration continues. A delegate's
question arrives while other Runs are active, by `LiveQuestions.on_asked`; it is answered without stopping them.

The kernel knows nothing of this package: a stream drives Jobs by the methods of `engine.jobs.jobs.Jobs` and listens as
any listener does. A new kind of event is a breaking change for programs, which match the union with `assert_never`.
"""
