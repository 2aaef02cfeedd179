"""The command `perstack demo`: a recorded Job, played through the view of `perstack run`.

The demo plays the recording of a test of a `perstack init` template, so that a user can install what it shows. Replies
and results of programs are recorded; permission rules, delegates, files and the log work as in any Job.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from perstack.core.base.text import one_line
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.summary import JobSummary
from perstack.doors.cli.driving import drive_interruptible, report_outcome
from perstack.doors.cli.first_run.templates import DEFINITION, Template, templates
from perstack.doors.cli.options import HostOptions
from perstack.doors.cli.output import JobOutput, OutputOptions
from perstack.doors.cli.terminal import has_screen, print_out
from perstack.doors.shared.agreement_items import agree_to_written
from perstack.doors.shared.signals import INTERRUPTED
from perstack.engine.log.run_session import OnEvent
from perstack.errors import UsageError
from perstack.ports.environment import STATE_KEY
from perstack.system.files import system_reason
from perstack.trust.agreements import Agreement

_TEMPLATE = "data-checker"
_RECORDING = "tests/orders.json"
_WRITES = "report.md"
_PACE_S = 1.2  # seconds of a reply; the demo's seven replies take less than 10 s


@click.command("demo")
@click.option("--to", metavar="FOLDER", help="Keep the Experts, their files and the Job in this new folder.")
def demo_command(to: str | None) -> None:
    """Play a recorded Job: two Experts check a table and write a report. Needs no key and no network.

    It uses a temporary folder, which is removed afterwards, unless --to names one.
    """
    template = templates()[_TEMPLATE]
    _, _, expert, query = shlex.split(template.command)
    with _folder(to) as folder:
        _write(template, folder)
        if to is not None:
            agree_to_written(folder)
        print_out(
            f"A recorded example: its replies were written for it, and no model is called.\n\n$ {template.command}"
        )
        job, status = _play(folder, expert, query)
        if job is None or job.status != "completed":
            sys.exit(status)
        print_out(f"\n$ cat {_WRITES}\n{(folder / _WRITES).read_text(encoding='utf-8')}")
    if to is None:
        print_out(f"The folder was removed. To get these Experts: perstack init my-checker --template {_TEMPLATE}")
    else:
        print_out(f"next: {one_line(f'cd {shlex.quote(to)} && perstack log')}")


@contextmanager
def _folder(to: str | None) -> Generator[Path]:
    if to is None:
        with TemporaryDirectory(prefix="perstack-demo-") as name, _own_state_key():
            yield Path(name)
        return
    folder = Path(to)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"--to {to} exists already: name a new folder") from None
    except OSError as error:
        raise UsageError(f"--to {to} cannot be created: {system_reason(error)}; name another folder") from None
    yield folder


@contextmanager
def _own_state_key() -> Generator[None]:
    """Mark state with a temporary key; otherwise the first demo would leave a key file in the user's home."""
    if os.environ.get(STATE_KEY):
        yield
        return
    os.environ[STATE_KEY] = secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ[STATE_KEY]


def _write(template: Template, folder: Path) -> None:
    pace = f", pace = {_PACE_S}" if has_screen() else ""  # no pauses in a pipe: nobody watches
    model = (
        "# A recording replies in place of a model. Without these two lines the model is the first that is set up.\n"
        f'provider.providerName = "recorded"\nprovider.setting = {{ recording = "{_RECORDING}"{pace} }}'
    )
    for name, text in template.render(model).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _play(folder: Path, expert: str, query: str) -> tuple[JobSummary | None, int]:
    """Run the Expert, and return its Job, None if it was interrupted before it began, with the exit status."""
    overrides = Overrides(recording=str((folder / _RECORDING).resolve()))  # including its answers of a person
    options = HostOptions(workspace=str(folder), config=str(folder / DEFINITION), overrides=overrides)
    # Perstack wrote this definition, so nobody is asked; a stored agreement would stay behind in the home.
    host, lines = (
        options.open_host(agreement=Agreement(Project())),
        JobOutput(OutputOptions(chosen_form="human", no_input=True)),
    )

    async def run_expert(on_event: OnEvent) -> JobSummary:
        return await host.run(expert, query, on_event=on_event)

    summary = drive_interruptible(host, run_expert, lines)
    if summary is None or summary.status == "stoppedByInterrupt":
        return summary, INTERRUPTED
    if summary.status != "completed":
        return summary, report_outcome(summary, lines)
    lines.result(summary.id, summary.text)
    return summary, 0
