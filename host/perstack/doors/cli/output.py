"""Output of a command that drives a Job: for programs on stdout, and for the user at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar

import click

from perstack.core.base.text import one_line
from perstack.dataclass import dataclass
from perstack.doors.cli.terminal import (
    discard_stdout,
    has_screen,
    is_attended,
    is_stdout_behind,
    print_err,
    print_note,
    print_out,
    print_result,
    write_json_line,
)
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.errors import PerstackError, UsageError

if TYPE_CHECKING:
    from perstack.core.runs.events import Event
    from perstack.doors.cli.live import LiveView
    from perstack.host import Host

_F = TypeVar("_F", bound=Callable[..., object])

Form = Literal["human", "jsonl", "text"]

_STREAMED = frozenset({"streamText", "streamReasoning"})


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The values of `output_options`."""

    chosen_form: Form | None = None  # None for human at a terminal, otherwise jsonl
    stream: bool = False
    quiet: bool = False
    compact: bool = False
    verbose: bool = False
    no_input: bool = False
    types: frozenset[str] | None = None  # types of events that jsonl is limited to; None for all

    @property
    def form(self) -> Form:
        """The form of stdout."""
        if self.types is not None:
            return "jsonl"
        if self.quiet and self.chosen_form != "jsonl":
            return "text"
        return self.chosen_form or ("human" if has_screen() else "jsonl")


def output_options(command: _F) -> _F:
    """Add the output options of a command that drives a Job, as `output_options: OutputOptions`."""

    @wraps(command)
    def gather(
        *,
        output: Form | None,
        stream: bool,
        quiet: bool,
        compact: bool,
        verbose: bool,
        no_input: bool,
        **others: object,
    ) -> None:
        command(output_options=OutputOptions(output, stream, quiet, compact, verbose, no_input), **others)

    decorated: Callable[..., object] = gather
    for option in (
        click.option(
            "--no-input", is_flag=True, help=("Do not ask questions at the terminal; exit with status 3 instead.")
        ),
        click.option("--verbose", is_flag=True, help="For people: show tool results in full instead of one line."),
        click.option(
            "--compact", is_flag=True, help="Show the rows of `perstack log` instead of the model's full texts."
        ),
        click.option("--quiet", is_flag=True, help="Print only the result, or why there is none; no progress."),
        click.option(
            "--stream", is_flag=True, help=("With jsonl: also print text and reasoning while they are generated.")
        ),
        click.option(
            "--output",
            type=click.Choice(("human", "jsonl", "text")),
            help=(
                "human: for people; jsonl: events as JSON; text: only the result. Default: human at a terminal, else "
                "jsonl."
            ),
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[return-value]  # the command with its options


def with_types(output_options: OutputOptions, text: str | None) -> OutputOptions:
    """Return the options, limited to the events that `--filter` names. Raises UsageError."""
    if text is None:
        return output_options
    from perstack.doors.shared.filter_expression import (  # imported late: few commands filter
        ORIGINAL_TYPES,
        types_named,
    )

    if output_options.quiet or output_options.chosen_form not in (None, "jsonl"):
        raise UsageError("--filter prints events as JSON: leave out --quiet, --output human and --output text")
    try:
        types = types_named((text,), ORIGINAL_TYPES)
    except ValueError as error:
        names = ", ".join(ORIGINAL_TYPES)
        raise UsageError(f"--filter {one_line(str(error))}: no such event type; available: {names}") from error
    if not types:
        raise UsageError("--filter names no event: write it as --filter finishRun,errorRun")
    return replace(output_options, types=types)


class JobOutput:
    """A listener that shows each event of a Job. `on_lost` is called once, when stdout can no longer be written."""

    def __init__(self, output_options: OutputOptions) -> None:
        self.form = output_options.form
        self.job_id: str | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self.lost: OSError | None = None  # error that closed stdout; None while it can be written
        self.may_ask = not output_options.no_input  # True if the user at the terminal may be asked
        self.is_asking = False
        self._output_options = output_options
        self._warned: set[str] = set()
        self.view = None if output_options.quiet else self._view()

    def _view(self) -> LiveView | None:
        shows_on_stderr = self.form != "human" and not has_screen() and is_attended()
        if self.form != "human" and not shows_on_stderr:
            return None
        from perstack.doors.cli.live import LiveView  # imported late: a pipe does not need it

        return LiveView(
            to_stderr=shows_on_stderr,
            is_compact=shows_on_stderr or self._output_options.compact,
            is_verbose=self._output_options.verbose,
        )

    async def begin(self, host: Host, job_id: str | None) -> None:
        """Start with the totals of an existing Job, and note on stderr if its programs run without a question."""
        if self._output_options.quiet:
            return
        with suppress(PerstackError):  # driving it reports the error
            summary = await host.job(job_id)
            if self.view is not None:
                self.view.begin(summary)
            if not host.programs_note and (note := await host.programs_note_of(summary)):
                print_err(f"note: {note}")

    def __call__(self, event: Event, line: bytes) -> None:
        """Show an event: as a line of JSON, in the live view, or as a warning."""
        self.job_id = event.job_id
        if self._prints(event.type):
            self.write(line)
        if self.view is not None:
            self._show_in_view(event)
        if event.type == "skillDisconnected" and event.reason:
            self._warn(event.skill_name, event.text_for(cli_phrase))
        elif event.type == "adaptRequest" and self.view is None:
            print_err(f"warning: {event.expert_key}: requests are sent {event.words}")

    def _prints(self, kind: str) -> bool:
        types = self._output_options.types
        if types is not None and kind not in types:
            return False
        is_wanted = self._output_options.stream or types is not None  # naming a streamed type in --filter requests it
        return kind not in _STREAMED or (is_wanted and not is_stdout_behind())

    def write(self, line: bytes) -> None:
        """Write a line of JSON, if that is the form of stdout."""
        if self.form == "jsonl":
            self._write_stdout(lambda: write_json_line(line))

    def result(self, job_id: str, text: str | None) -> None:
        """Show the result of a Job in full, unless the live view has."""
        if self.form == "jsonl" or text is None or self.has_shown(job_id):
            return
        if self.form == "human" and self.view is not None:
            self._write_stdout(print_out)
        self._write_stdout(lambda: print_result(text) if self.form == "text" else print_out(text))

    def has_shown(self, job_id: str) -> bool:
        """Return whether the live view has shown the result of this Job in full."""
        return self.view is not None and self.view.finished_job_id == job_id

    def remark(self, text: str) -> None:
        """Show a message on stderr at a terminal, otherwise on stdout if it is for people, otherwise nowhere."""
        if self._output_options.quiet:
            return
        if self.form == "human" and not is_attended():
            self._write_stdout(lambda: print_out(one_line(text)))
        else:
            print_note(text)

    def pause(self) -> None:
        """Erase the live lines until the next event."""
        if self.view is not None:
            with suppress(OSError):
                self.view.pause()

    def forget(self) -> None:
        """Forget the live lines, since another program used the terminal."""
        if self.view is not None:
            self.view.forget()

    def _show_in_view(self, event: Event) -> None:
        view = self.view
        if view is None:
            return
        if self.form == "human":
            self._write_stdout(lambda: view.show_event(event))
            return
        try:
            view.show_event(event)
        except OSError:  # the terminal is gone
            self.view = None

    def _write_stdout(self, write: Callable[[], None]) -> None:
        if self.lost is not None:
            return
        try:
            write()
        except OSError as error:
            self.lost = error
            self.view = None
            discard_stdout()
            self.on_lost()

    def _warn(self, skill_name: str, reason: str) -> None:
        text = reason if repr(skill_name) in reason else f"skill {skill_name!r}: {reason}"
        if text not in self._warned:
            self._warned.add(text)
            print_err(f"warning: {one_line(text)}")
