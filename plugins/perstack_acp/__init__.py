"""The Agent Client Protocol door: Experts as agents of editors.

A session is a Job, a prompt turn is a Run, and the session's modes are the Experts. `agent` answers the protocol's
requests over stdio, `sessions` keeps the open sessions with one Host for each workspace, and `updates` turns a turn's
events into `session/update` notifications. A question with choices becomes a permission request; any other question
ends the turn, and the next prompt answers it.

A running turn is shown by `updates.Updates`, a loaded session by `updates.replay_updates`: change what
editors show in both. stdout carries only the protocol.
"""
