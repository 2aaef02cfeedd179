"""What programs get beside a Host: checked calls, and Experts with functions.

`calls` checks the arguments of public functions, so that a mistake is a UsageError that names the argument, and not an
error from within. `functions` takes the functions out of `Expert(…, tools=[…])`, since a log has their names alone, and
offers them to their Expert as a skill; a Run that began with a function is not resumed without it.

The Host and the tasks decorate their methods with `calls`; `perstack.streams` has the Jobs to iterate over.
"""
