"""Texts that people post to the Runs of Jobs, from any process: told before the next generation, never summarised away.

A text is posted to a mailbox of the storage (`mailboxes`), one for each Job and one for each delegate, where it
survives power loss. The loop asks for texts before each generation, on whichever machine the Run is driven:
`Mailboxes.take` records each as `tellRun`, or `dropText` for a removal, writes these events, and then removes the texts
from the mailbox. A crash in between leaves them there; the event repeats a text's id, which the Run's state keeps, so
none is taken twice.

`model` is pure: which texts are accepted, which Run receives one, and the events by which it takes them. `posting` is
`host.texts`: post a text, remove one, and list what always holds for a Run. A text of another user's state is not
taken, only shown (`state_guard`).

The kernel has the two events and the state that they change (`core.runs.events.context`, `core.messages.standing`), and
asks for texts by `TEXT_INBOX` (`engine.runs.input_protocols`).
"""
