"""`python -m perstack` is `perstack`."""

from perstack.doors.cli.entry import entry

entry()
