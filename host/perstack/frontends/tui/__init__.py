"""`perstack start`: the terminal program for people. Over the Host alone: all that it can do, the command line can."""
