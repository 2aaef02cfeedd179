"""Commands for somebody who has nothing set up yet. The command line imports a module when its command is called."""
