"""Support for Python programs beside the Host: checked calls, and Experts with functions.

`checked_calls` checks the arguments of public functions, so that a mistake is a UsageError that names the argument, and
not an internal error. `functions` takes the functions out of `Expert(…, tools=[…])`, since a log has only their names,
and offers them to their Expert as a skill; a Run that began with a function is not resumed without it.

The Host and the tasks decorate their methods with `checked_calls`; `perstack.streams` has the Jobs to iterate over.
"""
