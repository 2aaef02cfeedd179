"""`python -m perstack` is `perstack`."""

from perstack.frontends.cli.main import entry

entry()
