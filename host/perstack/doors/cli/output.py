"""What a command that drives a Job shows: to programs on stdout, and to a person at a terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar

import click

from perstack.core.events import Event, SkillDisconnected
from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.dataclass import dataclass
from perstack.errors import PerstackError
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.terminal import data, discard_stdout, err, has_screen, is_attended, out, remark, result

if TYPE_CHECKING:
    from perstack.frontends.cli.live import LiveView

_F = TypeVar("_F", bound=Callable[..., object])

Form = Literal["human", "jsonl", "text"]

_STREAMED = frozenset({"streamText", "streamReasoning"})


@dataclass(frozen=True, slots=True)
class Showing:
    """The values of `showing_options`."""

    output: Form | None = None
    """None: for a person if stdout is a terminal, else JSON."""
    stream: bool = False
    quiet: bool = False
    no_input: bool = False

    @property
    def form(self) -> Form:
        """What stdout gets."""
        return self.output or ("human" if has_screen() else "jsonl")


def showing_options(command: _F) -> _F:
    """What is shown of a Job while it is driven, as `showing: Showing`."""

    @wraps(command)
    def gather(*, output: Form | None, stream: bool, quiet: bool, no_input: bool, **others: object) -> None:
        command(showing=Showing(output, stream, quiet, no_input), **others)

    found: Callable[..., object] = gather
    for option in (
        click.option("--no-input", is_flag=True, help="Ask nothing at the terminal: exit status 3, as without one."),
        click.option("--quiet", is_flag=True, help="No progress: only the result, and what is wrong."),
        click.option("--stream", is_flag=True, help="With JSON, also text and reasoning as they come."),
        click.option(
            "--output",
            type=click.Choice(("human", "jsonl", "text")),
            help="For a person, events as JSON, or the result alone; by default human at a terminal, else jsonl.",
        ),
    ):
        found = option(found)
    return found  # type: ignore[return-value]  # the command with its options


class Output:
    """Takes each event of a Job, and shows it where it belongs.

    When stdout cannot be written any more, `on_lost` is called once, and nothing is written there from then on.
    """

    def __init__(self, showing: Showing) -> None:
        self.form = showing.form
        self.job_id: str | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self.lost: OSError | None = None
        """Why stdout cannot be written any more."""
        self.asks = not showing.no_input
        """Whether a person at the terminal may be asked."""
        self.is_asking = False
        self._showing = showing
        self._warned: set[str] = set()
        self.view = None if showing.quiet else self._view()

    def _view(self) -> LiveView | None:
        is_beside = self.form != "human" and not has_screen() and is_attended()
        if self.form != "human" and not is_beside:
            return None
        from perstack.frontends.cli.live import LiveView  # a pipe needs none of it

        return LiveView(to_stderr=is_beside)

    async def begin(self, job: Callable[[], Awaitable[JobSummary]]) -> None:
        """A Job is driven on: what it has spent so far counts in what is shown."""
        if self.view is not None:
            with suppress(PerstackError):  # whoever drives it says what is wrong
                self.view.begin(await job())

    def __call__(self, event: Event, line: bytes) -> None:
        self.job_id = event.job_id
        if event.type not in _STREAMED or self._showing.stream:
            self.write(line)
        if self.view is not None:
            self._watched(event)
        if isinstance(event, SkillDisconnected) and event.reason:
            self._warn(event.skill_name, event.said(said))

    def write(self, line: bytes) -> None:
        """One line of JSON, if that is what stdout gets."""
        if self.form == "jsonl":
            self._put(lambda: data(line))

    def result(self, text: str | None) -> None:
        """What came of it, in full, unless stdout has the events."""
        if self.form == "jsonl" or text is None:
            return
        if self.form == "human" and self.view is not None:
            self._put(out)
        self._put(lambda: result(text) if self.form == "text" else out(text))

    def remark(self, text: str) -> None:
        """Words for a person beside the result. In a pipe stderr is for what is wrong, and the events say the rest."""
        if self.form == "human" and not is_attended():
            self._put(lambda: out(one_line(text)))
        else:
            remark(text)

    def pause(self) -> None:
        """Leave the terminal to others until the next event."""
        if self.view is not None:
            with suppress(OSError):
                self.view.pause()

    def forget(self) -> None:
        """The terminal has been somebody else's meanwhile."""
        if self.view is not None:
            self.view.forget()

    def _watched(self, event: Event) -> None:
        view = self.view
        if view is None:
            return
        if self.form == "human":
            self._put(lambda: view.take(event))
            return
        try:
            view.take(event)
        except OSError:  # nobody looks any more
            self.view = None

    def _put(self, write: Callable[[], None]) -> None:
        """Write to stdout, as long as that can be written."""
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
            err(f"warning: {one_line(text)}")
