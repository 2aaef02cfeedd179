"""`python -m perstack` is `perstack`."""

from perstack.frontends.cli.start import entry

entry()
