"""Ask a person at the terminal: show the whole question, and read what is typed."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import replace

from perstack.core.base.ids import place_of
from perstack.core.runs.questions import OpenQuestion
from perstack.doors.cli.terminal import print_err
from perstack.host import Host

_MAX_ANSWER_BYTES = 64 << 10  # maximum bytes of a typed answer


async def ask_person(question: OpenQuestion, host: Host, used: str) -> str:
    """Return the typed answer; empty to leave the question for later. `used`: what the Job has used so far."""
    import termios

    from perstack.core.jobs.answers import DENIES, accepted, accepted_answers, yes_or_no  # imported late: few Jobs ask
    from perstack.doors.shared.consent import TERMINAL, page_of
    from perstack.doors.shared.questions import question_text, select_option

    is_approval, allowed, is_whole = bool(question.call_digest), accepted_answers(question), True
    if is_approval:
        where = f"perstack start --job {place_of(question.id)[0]}"
        page = replace(page_of(question, host.workspace, used), where=where)
        text, is_whole = page.fitted(TERMINAL)
        allowed = allowed if is_whole else replace(allowed, options=(DENIES,))
    else:
        text = question_text(question)
    for line in text.split("\n"):
        print_err(line)
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # earlier input is no answer to this question
    number = f"give {'numbers' if allowed.several else 'a number'}, or " if allowed.options and not is_approval else ""
    print_err(f"{'approve' if is_approval else 'answer'}? ({number}{accepted(allowed)}; nothing: later)")
    try:
        answer = (await _read_line()).strip()
    except asyncio.CancelledError:  # Ctrl-C: the Job has stopped already, and waits
        print_err("")
        return ""
    if not is_approval:
        return select_option(allowed, answer)
    decision = yes_or_no(answer)
    if answer and not is_whole and (decision is None or decision.is_yes):
        print_err(f"the call was not shown whole: {accepted(allowed)}")
        return ""
    return answer


async def _read_line() -> str:
    """Return the next typed line; empty at the end of stdin. Does not block, so Ctrl-C ends the wait."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    line_future: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(fd)
        try:
            data = os.read(fd, _MAX_ANSWER_BYTES)
        except OSError:
            data = b""
        if not line_future.done():
            line_future.set_result(data)

    loop.add_reader(fd, read)
    try:
        return (await line_future).decode("utf-8", "replace")
    finally:
        loop.remove_reader(fd)
