"""State of unknown origin: only state that this user's installation made is acted upon; any other is only shown.

State decides what a resumed Job runs, and a clone, an archive or a pull can bring it. `state_marks` and `log_marks` are
the proofs that this installation made a folder of state, and began each log in it. `guarded_state` wraps the storage
that a Host, or the tasks without a Host, open (`open_own_state`): the first write needs the mark or a person's yes.

What acts before it writes asks `require_own_state`. The page that a person sees is made by `perstack.diagnostics`.
"""
