"""Ask a person at the terminal: show the whole question, and read what is typed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from textwrap import fill

from perstack.core.base.ids import place_of
from perstack.core.base.text import one_line
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.cli.terminal import print_err
from perstack.doors.shared.screen import Screen
from perstack.errors import UsageError
from perstack.host import Host

_EDIT = "e"
_MAX_ANSWER_BYTES = 64 << 10  # maximum bytes of a typed answer


async def ask_person(question: OpenQuestion, host: Host, spent: str) -> str:
    """Return the typed answer; empty to leave the question open. `spent` tells what the Job has cost so far."""
    from perstack.core.jobs.answer_reading import accepted_answers, describe_accepted  # imported late: few Jobs ask
    from perstack.doors.shared.question_forms import question_text, select_option

    try:
        if question.call_digest:
            return await _ask_approval(question, host, spent)
        allowed = accepted_answers(question)
        for line in question_text(question).split("\n"):
            print_err(line)
        _discard_typed()
        number = f"give {'numbers' if allowed.is_list else 'a number'}, or " if allowed.options else ""
        print_err(f"answer? ({number}{describe_accepted(allowed)}; Enter: later)")
        return select_option(allowed, (await _read_line()).strip())
    except asyncio.CancelledError:  # Ctrl-C: the Job has already stopped, so the question stays open
        print_err("")
        return ""


async def _ask_approval(question: OpenQuestion, host: Host, spent: str) -> str:
    """Show a call and its numbered answers, and return the answer. After an invalid one only the prompt is repeated."""
    from perstack.core.jobs.answer_reading import ALWAYS, ALWAYS_HERE, DENIES
    from perstack.doors.shared.consent import TERMINAL, covered_calls, page_of
    from perstack.doors.shared.edited_arguments import edit_call

    command = f"perstack start --job {place_of(question.id)[0]}"
    page = replace(page_of(question, host.workspace, spent), where=command)
    fitted_page = page.fitted(TERMINAL)
    answers = {"yes": "yes"} if fitted_page.is_whole else {}
    for answer, covered in covered_calls(question) if fitted_page.is_whole else ():
        extent = "in this project" if answer.startswith(ALWAYS_HERE) else "in this Job"
        rule = answer.removeprefix(ALWAYS_HERE).removeprefix(ALWAYS).removeprefix(": ")
        answers[answer] = f"yes, and always {f'{rule} {extent}: {covered}' if rule else f'{covered} {extent}'}"
    answers[DENIES] = "no; type n and words to give the model a reason"
    numbers = dict(enumerate(answers, 1))
    page_lines = [line for row in page.rows if row.kind != "covers" for line in row.lines]
    for line in page_lines if fitted_page.is_whole else fitted_page.text.split("\n"):
        print_err(line)
    _print_answers(answers.values(), "edit the arguments, then run it" if fitted_page.is_whole else "")
    draft = ""
    while True:
        answer = await _read_approval(question, numbers, is_whole=fitted_page.is_whole)
        if answer != _EDIT:
            return answer
        edited_call = await asyncio.to_thread(edit_call, question, draft)
        if edited_call.answer:
            return edited_call.answer
        print_err(edited_call.problem)
        draft = edited_call.draft


async def _read_approval(question: OpenQuestion, numbers: Mapping[int, str], *, is_whole: bool) -> str:
    """Return the answer to an approval, or `_EDIT`; empty to leave it open. An invalid one repeats the prompt."""
    from perstack.core.jobs.answer_reading import read_approval
    from perstack.doors.cli.asking.typed_keys import read_keys, unbuffered_keys

    hint = f"approve? (1 to {len(numbers)}{', yes' if is_whole else ''}, or n and why; Enter: later)"
    with unbuffered_keys():
        while True:
            print_err(hint)
            typed = (await read_keys(lambda text: _is_one_key(text, len(numbers)))).strip()
            answer = _parse_answer(typed, numbers)
            if not answer or (answer == _EDIT and is_whole):
                return answer
            try:
                decision = read_approval(question, answer)
            except UsageError:
                continue
            if is_whole or decision.denies:
                return answer


def _is_one_key(text: str, last: int) -> bool:
    """Return whether the text is a whole answer without Enter: the key to edit, or a number that begins no larger one.

    A word is read up to Enter; otherwise its other letters would reach the shell after the Job.
    """
    return text == _EDIT or (text.isascii() and text.isdecimal() and 0 < int(text) <= last and int(text) * 10 > last)


def _parse_answer(typed: str, numbers: Mapping[int, str]) -> str:
    """Return the answer for a typed number, letter or text."""
    if typed.isascii() and typed.isdecimal() and len(typed) < 4:
        return numbers.get(int(typed), typed)
    word, _, reason = typed.partition(" ")
    if word in ("n", "N") and reason.strip():
        return f"no: {reason.strip()}"
    return typed


def _print_answers(texts: Iterable[str], edit: str) -> None:
    """Print numbered answers. Wrapped lines begin with a mark, so that no text can look like another answer."""
    width = Screen.of_stderr().width
    lines = [*((str(number), text) for number, text in enumerate(texts, 1)), *([(_EDIT, edit)] if edit else [])]
    for key, text in lines:
        head = f"{key:>3} "
        print_err(fill(head + one_line(text), width, subsequent_indent=" " * len(head) + "| ", break_on_hyphens=False))


def _discard_typed() -> None:
    """Discard input typed before the question was shown: it cannot be an answer."""
    import termios

    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def _read_line() -> str:
    """Return the next typed line; empty at the end of stdin. Does not block the event loop, so Ctrl-C works."""
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
