"""The command `perstack chaos`: kills an Expert's processes repeatedly, and reports what was lost or done twice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from perstack.config.load import load_project
from perstack.config.project import find_place
from perstack.config.source import read_bounded
from perstack.config.trust import TrustStore
from perstack.core.base.text import count, one_line
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project, with_delegates
from perstack.core.definitions.skills import ToolSpec
from perstack.doors.cli.options import config_option
from perstack.doors.cli.param_types import SPAN
from perstack.doors.cli.terminal import print_err, print_note, print_out
from perstack.doors.create import copy_project
from perstack.doors.shared.agreements import agreed_items
from perstack.doors.shared.next_steps import cli_phrase
from perstack.errors import UsageError
from perstack.host import Host
from perstack.testing.chaos.experiment import Assault, ExperimentSubject, Tally, Trial, script_for
from perstack.testing.chaos.faults import Fault
from perstack.testing.chaos.processes import Victims
from perstack.testing.scripted import load_script

_RANDOM_KILLS = 5  # kills of one Job at random instants, in one process after another


@click.command("chaos")
@click.argument("expert")
@click.option("--query", metavar="TEXT", default="go", show_default=True, help="The query.")
@click.option("--answer", metavar="TEXT", default="yes", show_default=True, help=("The answer to all its questions."))
@click.option(
    "--script", metavar="FILE", help=("A script of the models' replies; by default each tool is called once.")
)
@click.option("--kills", type=click.IntRange(min=1), metavar="N", help="Stop after this number of kills.")
@click.option(
    "--for",
    "duration",
    type=SPAN,
    metavar="TIME",
    help=("Stop after this time, such as 2m. Default without --kills: 1m."),
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the random choices.")
@click.option("--storage", metavar="SCHEME:PLACE", help="The storage of its Jobs, in each copy of the project.")
@config_option
def chaos_command(
    expert: str,
    query: str,
    answer: str,
    script: str | None,
    kills: int | None,
    duration: int | None,
    seed: int,
    storage: str | None,
    config: str | None,
) -> None:
    """Kill the processes of EXPERT at writes and at random, resume its Jobs, and report lost or repeated work.

    Models are scripted, and cost nothing. Tools are really called, in a copy of the folder of perstack.toml. Exit
    status 1 if anything was lost, repeated or wrong.
    """
    seconds = _seconds(duration, kills)
    place = find_place(".", config)
    path = place.require_path()
    project = load_project(path).project
    experts = _team(project, expert)
    agreed = agreed_items(project, place)
    room = Path(tempfile.mkdtemp(prefix="perstack-chaos-"))
    template = room / "template"
    try:
        copy_project(path.parent.resolve(), template)
    except UsageError:
        shutil.rmtree(room)
        raise
    (template / "perstack.toml").write_bytes(read_bounded(path))
    storage = storage or _own_place(project.storage)
    env = {**os.environ, "PERSTACK_PLUGINS": _with_scripted(os.environ.get("PERSTACK_PLUGINS", ""))}
    env["PERSTACK_SCRIPT"] = str(room / "script.json")
    with TrustStore.of_user().agreed_in_copy(template, agreed):
        _write_script(room / "script.json", script, experts, template, storage, env)
    target = ExperimentSubject(template, expert, query, env, storage=storage, answer=answer, agreed=agreed)
    (room / "jobs").mkdir()
    tally = Tally()
    try:
        with Victims(env) as victims:
            assault = Assault(target, victims, room / "jobs")
            _attack(assault, tally, random.Random(seed), kills, seconds)  # noqa: S311 - chance, and no secret
    except RuntimeError as error:
        shutil.rmtree(room)
        raise UsageError(f"{expert} cannot be attacked: {one_line(str(error))}; a --script may help") from None
    _say(tally, room)


def _attack(assault: Assault, tally: Tally, chance: random.Random, kills: int | None, seconds: float) -> None:
    end = time.monotonic() + seconds
    plain = assault.plain()
    for trial in _trials(assault, plain, chance):
        tally.add(trial)
        for finding in trial.findings:
            print_err(f"{finding.kind}: {trial.name}: {one_line(finding.message)}; see {trial.folder}")
        if tally.trials % 10 == 0:
            print_note(f"{tally.kills} kills")
        if time.monotonic() >= end or (kills is not None and tally.kills >= kills):
            return


def _trials(assault: Assault, plain: Trial, chance: random.Random) -> Iterator[Trial]:
    max_seconds = max(victim.seconds for victim in plain.victims)
    while True:
        boundaries = list(range(1, plain.boundaries("kill") + 1))
        chance.shuffle(boundaries)
        for number, boundary in enumerate(boundaries):
            yield assault.disturbed(Fault("torn" if chance.random() < 1 / 3 else "kill", boundary))
            if number % 3 == 0:
                yield assault.kill_after(*(chance.uniform(0, max_seconds) for _ in range(_RANDOM_KILLS)))


def _say(tally: Tally, room: Path) -> None:
    lost, repeated, wrong = (tally.number(kind) for kind in ("lost", "repeated", "wrong"))
    print_out(f"{count(tally.kills, 'kill')}, {lost} lost, {repeated} repeated" + (f", {wrong} wrong" if wrong else ""))
    if not tally.findings:
        shutil.rmtree(room)
    sys.exit(1 if tally.findings else 0)


def _seconds(duration: int | None, kills: int | None) -> float:
    if duration is not None:
        return duration / 1000
    return 60.0 if kills is None else float("inf")


def _team(project: Project, key: str) -> tuple[Expert, ...]:
    if project.expert(key) is None:
        raise UsageError(
            f"there is no Expert {key!r} in {project.path}; there are: {', '.join(sorted(project.experts))}"
        )
    return tuple(with_delegates(project, (key,)))


def _own_place(address: str) -> str:
    scheme, _, _ = address.partition(":")
    return {"file": "file:perstack", "sqlite": "sqlite:perstack/state.db"}.get(scheme, address)


def _with_scripted(modules: str) -> str:
    return ",".join(name for name in (*modules.split(","), "perstack.testing.plugin") if name)


def _write_script(
    path: Path, script: str | None, experts: Sequence[Expert], folder: Path, storage: str, env: dict[str, str]
) -> None:
    if script is not None:
        path.write_text(load_script(Path(script)).model_dump_json(by_alias=True, exclude_defaults=True))
        return
    generated = script_for(asyncio.run(_tools(experts, folder, storage, env)))
    path.write_text(generated.model_dump_json(by_alias=True, exclude_defaults=True))


async def _tools(
    experts: Sequence[Expert], folder: Path, storage: str, env: dict[str, str]
) -> list[tuple[Expert, Sequence[ToolSpec]]]:
    tools_by_expert = list[tuple[Expert, Sequence[ToolSpec]]]()
    async with Host.open(config=folder / "perstack.toml", workspace=folder, storage=storage, env=env) as host:
        for index, expert in enumerate(experts):
            tools = await host.experts.tools(expert.key)
            for problem in tools.problems:
                print_err(f"warning: {expert.key}: {one_line(problem.text_for(cli_phrase))}")
            later = {other.key for other in experts[index + 1 :]}
            tools_by_expert.append((expert, tuple(spec for spec in tools.shown if _is_called(spec, index == 0, later))))
    return tools_by_expert


def _is_called(spec: ToolSpec, is_coordinator: bool, later: set[str]) -> bool:
    """Return whether a script calls the tool: only a Coordinator asks, and mutual delegation would never end."""
    if spec.kind == "interactive":
        return is_coordinator
    return spec.kind != "delegate" or spec.target in later
