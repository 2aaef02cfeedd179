"""The terminal program `perstack start`, for people. It uses only the Host, so the command line can do the same.

`session.Session` is one Job of the program, driven here or followed while a worker drives it; it knows no widget.
`view` folds its events into lines of styled text and knows nothing of Textual. `widgets` and `screens` draw these
lines, and `app` holds the tabs and actions. `plain` is the linear mode over a Session too, for screen readers and
terminals without a cursor. `actions` is the one table of keys: the bindings, the help and the palette are generated
from it. `terminal` checks the terminal's input and restores its modes.

Change what keys or commands do in `app` and in `plain.program` together: they decide this for two interfaces.
"""
