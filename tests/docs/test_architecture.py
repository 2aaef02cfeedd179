"""docs/architecture.md: its tables are those of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import get_args

import grimp
import pytest
from pages import ROOT, fenced, first_cells, keep_part, page, rows, section
from sources import PACKAGES

import perstack.core.runs.evolve as run_module
import perstack.iterations.state as series_state
import perstack.iterations.state as series_transitions
import perstack.tasks.state as task_transitions
from perstack.core.base.ids import event_id_of, run_id_of
from perstack.core.definitions.job_status import ACTIVE, JobStatus, RunStatus, lifecycle_of, pause_reason_of
from perstack.core.jobs.due import DUE, DueAction, JobOwner, JobState
from perstack.core.runs.commands import Command
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.evolve import TRANSITIONS
from perstack.core.runs.facts import Settlement
from perstack.core.runs.state import Phase
from perstack.doors.cli.exit_statuses import EXIT_CODES, EXIT_STATUS
from perstack.feature_logs.transitions import Transition
from perstack.ports import hooks, storage
from perstack.tasks.state import TaskStatus

PAGE = page("docs/architecture.md")
STORED = [event.model_fields["type"].default for event in get_args(StoredEvent)]


def _words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers, *_ = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert first_cells(section(PAGE, "## Layers")) == layers


@pytest.mark.parametrize("layer", ["perstack.core", "perstack.engine", "perstack.doors"])
def test_the_packages_of_a_layer_are_those_of_its_import_contract_in_the_same_order(layer: str) -> None:
    _, _, table = section(PAGE, "## Layers").partition("| layer | packages |")
    documented = {row[0].strip("`"): row[1] for row in rows(f"| layer | packages |{table}")}
    contracts = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (floors,) = [contract["layers"] for contract in contracts if contract.get("containers") == [layer]]
    from_left = [_words(floor) for floor in documented[layer].split(" < ")]
    assert from_left == [floor.split(" | ") for floor in reversed(floors)]
    folder = ROOT / "host" / layer.replace(".", "/")
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {name for floor in from_left for name in floor} == packages | modules


LOOKING_FOR = rows(section(PAGE, "## Where to look"))


def _defined_in(path: Path) -> set[str]:
    """Names that a module defines at its top level: functions, classes and constants."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {one.id for one in targets if isinstance(one, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return names


@pytest.mark.parametrize(("what", "file", "symbol"), LOOKING_FOR, ids=[row[0] for row in LOOKING_FOR])
def test_the_file_to_look_in_is_there_and_defines_what_the_row_names(what: str, file: str, symbol: str) -> None:
    link = re.fullmatch(r"\[([\w/-]+\.py)\]\(([\w./-]+)\)", file)
    assert link, f"{what}: {file} is no link to a module"
    shown, target = link.groups()
    path = (ROOT / "docs" / target).resolve()
    assert path in {ROOT / "host/perstack" / shown, ROOT / shown}
    assert symbol.strip("`") in _defined_in(path)


def test_each_thing_to_look_for_has_one_row() -> None:
    looked_for = [row[0] for row in LOOKING_FOR]
    assert len(looked_for) == len(set(looked_for)) >= 40


def test_the_story_of_a_step_links_to_the_files_of_the_loop() -> None:
    story = section(PAGE, "## The story of one step")
    linked = re.findall(r"\]\(\.\./host/perstack/([\w/]+\.py)\)", story)
    loop = ("engine/runs/loop.py", "core/runs/pending.py", "core/runs/evolve.py", "engine/log/run_session.py")
    assert set(loop) <= set(linked)
    named = {name for name in _words(story) if name in STORED or name in {one.__name__ for one in get_args(Command)}}
    assert named, "the story names commands and events"


def test_imports_point_down_only() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", [one.name for one in PACKAGES])
def test_no_modules_import_each_other_in_a_circle_not_for_types_either(package: str) -> None:
    graph = grimp.build_graph(package)
    waits_for = {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
    TopologicalSorter(waits_for).prepare()


def _tables_of_the_loop() -> tuple[str, str]:
    loop = section(PAGE, "## The loop")
    return loop[: loop.index("| command |")], loop[loop.index("| command |") : loop.index("| event |")]


def test_the_phases_are_those_of_a_run_and_the_diagram_shows_each() -> None:
    phases, _ = _tables_of_the_loop()
    assert first_cells(phases) == [phase.name for phase in Phase]
    (diagram,) = fenced(section(PAGE, "## The loop"), "text")
    assert all(phase.name in diagram for phase in Phase)


def test_the_diagram_is_the_one_above_the_code() -> None:
    (diagram,) = fenced(section(PAGE, "## The loop"), "text")
    documented = {line.strip() for line in (run_module.__doc__ or "").splitlines()}
    assert {line.strip() for line in diagram.splitlines()} <= documented


def test_each_arrow_of_the_diagram_is_a_transition() -> None:
    (diagram,) = fenced(section(PAGE, "## The loop"), "text")
    arrows = re.findall(r"(?=\b([A-Z]+) ──(\w+)──▶ ([A-Z]+))", diagram)
    arrows += [("SETTLED", event, "READY") for event in re.findall(r"└─+(\w+)─+ SETTLED ◀", diagram)]
    assert len(arrows) == 4
    for origin, event, target in arrows:
        assert Phase[origin] in TRANSITIONS[event].phases
        assert Phase[target] in TRANSITIONS[event].to_phases
    moving = {event for event, transition in TRANSITIONS.items() if transition.to_phases}
    assert moving == {event for _, event, _ in arrows} | {"finishToolCall", "attemptCompletion"}  # "has its result"


def test_the_table_of_transitions_is_the_one_that_evolve_holds_to() -> None:
    _, head, table = section(PAGE, "## The loop").partition("| event | ")
    printed = f"{head}{table}".partition("\n\n")[0] + "\n"
    lines = [f"| {' | '.join(row)} |\n" for row in _transitions()]
    wanted = "".join([*printed.splitlines(keepends=True)[:2], *lines])
    assert keep_part("docs/architecture.md", printed, wanted) == wanted


@pytest.mark.parametrize(
    ("heading", "table", "places"),
    [
        ("| event | where the task is |", task_transitions.TRANSITIONS, (*get_args(TaskStatus), "archived")),
        ("| event | where the series is |", series_transitions.TRANSITIONS, get_args(series_state.Place)),
    ],
)
def test_the_transitions_of_tasks_and_series_are_those_that_are_held_to(
    heading: str, table: Mapping[str, Transition[str]], places: tuple[str, ...]
) -> None:
    def words(found: frozenset[str]) -> str:
        return "any" if found == set(places) else ", ".join(one for one in places if one in found) or "-"

    documented = rows(heading + PAGE.partition(heading)[2].partition("\n\n")[0])
    assert documented == [[f"`{fact}`", words(one.states), words(one.to)] for fact, one in table.items()]


def _transitions() -> list[list[str]]:
    def phases(found: tuple[Phase, ...], none: str) -> str:
        return none if found in ((), tuple(Phase)) else ", ".join(p.name for p in Phase if p in found)

    def statuses(found: frozenset[RunStatus]) -> str:
        if found == ACTIVE:
            return "running, stoppedByDelegate"
        return (
            "any"
            if len(found) == len(get_args(RunStatus))
            else ", ".join(sorted(found))
            if len(found) < 3
            else ("any but completed")
        )

    return [
        [
            f"`{name}`",
            phases(transition.phases, "any"),
            statuses(transition.statuses),
            phases(transition.to_phases, "-"),
            transition.to_status or "-",
        ]
        for name, transition in TRANSITIONS.items()
    ]


def test_the_commands_are_those_of_the_loop_and_each_phase_names_known_ones() -> None:
    phases, commands = _tables_of_the_loop()
    names = [command.__name__ for command in get_args(Command)]
    assert first_cells(commands) == names
    named = [word for row in rows(phases) for word in _words(row[1])]
    assert set(named) == set(names)


def test_every_event_but_those_of_starts_and_stops_is_recorded_by_a_command() -> None:
    _, commands = _tables_of_the_loop()
    recorded = {word for row in rows(commands) for word in _words(row[2])}
    others = {"startRun", "resumeRun", "answerQuestion", "changeCall", "settleCall", "stopRunByInterrupt"}
    others |= {"closeRun", "queueRun", "redactEvent", "widenPermissions", "startRewind", "finishRewind"}
    others |= {"tellRun", "dropText"}
    assert recorded == set(STORED) - others


def test_a_jobs_life_is_that_of_the_code() -> None:
    table = rows(section(PAGE, "## A Job's life"))
    assert [row[0].strip("`") for row in table] == list(get_args(JobStatus))
    for row in table:
        status, lifecycle, reason, code = (cell.strip("`") for cell in row[:4])
        assert lifecycle == lifecycle_of(status)
        assert (None if reason == "-" else reason) == pause_reason_of(status)
        assert code == "-" or int(code) == EXIT_STATUS[status]


def test_what_happens_by_itself_is_the_table_that_all_owners_of_jobs_read() -> None:
    by_itself = section(PAGE, "## What happens by itself")
    head, *_ = re.findall(r"^\| state of the Job \| (.*) \|$", by_itself, re.M)
    assert head.split(" | ") == [f"`{owner}`" for owner in get_args(JobOwner)]
    assert rows(by_itself) == [[f"`{state}`", *row.values()] for state, row in DUE.items()]
    assert first_cells(by_itself[by_itself.index("| owner |") :]) == list(get_args(JobOwner))
    assert set(re.findall('"(.+?)"', by_itself)) == set(get_args(DueAction))
    assert set(DUE) == set(get_args(JobState))
    assert set(get_args(JobStatus)) | set(_words(by_itself)) >= set(get_args(JobState))


def test_every_exit_status_is_named() -> None:
    life = section(PAGE, "## A Job's life")
    named = {int(row[3]) for row in rows(life) if row[3] != "-"}
    named |= {int(code) for code in re.findall(r"exit status (\d+)", life)}
    assert named == set(EXIT_CODES)


def test_the_hooks_are_those_that_are_specified() -> None:
    specified = {name for name in vars(hooks) if name.startswith("perstack_")}
    assert set(re.findall(r"`(perstack_\w+)`", section(PAGE, "## Plugins"))) == specified


def test_the_promises_of_a_storage_are_as_many_as_the_ports() -> None:
    def count(text: str) -> int:
        return len(re.findall(r"^\d\. ", text, re.M))

    assert count(section(PAGE, "## Storages")) == count(storage.__doc__ or "") > 0


def test_ids_are_made_as_the_page_says() -> None:
    assert "`{jobId}-{n}`" in PAGE
    assert run_id_of("job", 2) == "job-2"
    assert "`{runId}-{seq}`" in PAGE
    assert event_id_of("job-2", 7) == "job-2-7"


def test_the_ways_to_settle_a_call_are_all_named() -> None:
    (decision,) = [part for part in PAGE.split("\n\n") if part.startswith("**Intent before effect.**")]
    assert all(re.search(rf"\b{word}\b", decision) for word in get_args(Settlement))


def test_every_file_and_module_that_is_named_is_there() -> None:
    for name in re.findall(r"`((?:perstack/|engine/|plugins/)[\w/]*(?:\.py|/))`", PAGE):
        places = (ROOT / name, ROOT / "host" / name, ROOT / "host/perstack" / name)
        assert any(place.exists() for place in places), name


def test_a_query_goes_through_ten_stations_at_most_in_files_that_are_there() -> None:
    stations = rows(section(PAGE, "## From the command line to the disk and back"))
    assert len(stations) <= 10
    assert all((ROOT / "host/perstack" / row[1].strip("`")).exists() for row in stations)


def test_what_is_added_often_has_few_places() -> None:
    most = {"an event": 3, "a pause reason": 2, "a command": 2, "an operation on tasks": 2, "a setting of Runs": 2}
    most |= {"an operation on Jobs over MCP or HTTP": 1, "an endpoint that speaks OpenAI's formats": 1}
    places = {row[0]: row[1] for row in rows(section(PAGE, "## How to add"))}
    assert all(len(places[what].split(", ")) <= number for what, number in most.items())
    named = [name for row in places.values() for name in re.findall(r"`([\w/]+\.py)`", row)]
    folders = {name: ROOT if name.startswith("plugins/") else ROOT / "host/perstack" for name in named}
    assert [name for name, folder in folders.items() if not (folder / name).exists()] == []


def test_an_event_that_is_added_needs_no_case_but_in_the_files_that_name_most_kinds() -> None:
    """A further file with a case for each kind of event would be one more that each new event must change."""
    names = dict(zip((one.__name__ for one in get_args(StoredEvent)), STORED, strict=True))
    code = {path: path.read_text() for path in (ROOT / "host/perstack").rglob("*.py")}
    named = {
        str(path.relative_to(ROOT / "host/perstack")): sum(
            re.search(rf'\b{name}\b|"{kind}"', text) is not None for name, kind in names.items()
        )
        for path, text in code.items()
    }
    assert {path for path, kinds in named.items() if kinds > len(names) / 7 * 4} == {
        "core/runs/evolve.py",  # which needs a row in its table
        "doors/shared/activity.py",  # which needs a case
    }
    assert sum(named.values()) / len(names) < 9, "files that name an event, on average"


@pytest.mark.parametrize(
    "folder",
    ["core", "engine", "doors", "config", "lockfile", "trust", "ports", "support", "system", "toolkit", "testing"],
)
def test_every_match_says_what_becomes_of_the_rest(folder: str) -> None:
    """`assert_never` where there is no rest: a new member of a union is then an error of the type checkers."""
    open_ended: list[str] = []
    for path in (ROOT / "host/perstack" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            siblings = getattr(node, "body", None)
            for one, after in pairwise([*siblings, None]) if isinstance(siblings, list) else ():
                if isinstance(one, ast.Match):
                    rest = one.cases[-1].pattern
                    is_closed = isinstance(rest, ast.MatchAs) and rest.pattern is None
                    if not is_closed and not (after is not None and ast.unparse(after).startswith("assert_never(")):
                        open_ended.append(f"{path}:{one.lineno}")
    assert open_ended == []
