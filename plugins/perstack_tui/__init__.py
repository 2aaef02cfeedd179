"""The terminal program `perstack start`, for people. It uses the Host only: the command line can do all of it too.

`session.Session` is one Job of the program, driven here or followed while a worker drives it; it knows no widget.
`view` folds its events into lines of styled text and knows nothing of Textual. `widgets` and `screens` draw these
lines, and `app` holds the tabs and actions. `plain` is the linear mode over a Session too, for screen readers and
terminals without a cursor. `actions` is the one table of keys: the bindings, the help and the palette are generated
from it. `terminal` guards what the terminal sends and restores its modes.

A change of what keys or commands do must be made in `app` and in `plain.program`, which make these decisions for two
interfaces.
"""
