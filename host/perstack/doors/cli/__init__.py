"""The command line `perstack`.

`commands` is the table of all commands: group, module, one-line text and examples. `main` builds the click group from
it, imports a command's module when the command is called, and turns errors into messages and exit statuses. `entry` is
the console script. `options` gathers shared options into one `HostOptions`, which opens the Host. `driving` and
`output` drive a Job and show it. All output goes through `terminal`, which removes control sequences.

A new command needs an entry in `commands`, a function `NAME_command` in that module, and a section in docs/cli.md. The
docstring of a command function is its help text.
"""
