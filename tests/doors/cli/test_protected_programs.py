"""What the host runs, the user's own folders and other projects' state, from the command line: Experts change none."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal, reply

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
ITERATE = f"{SOLO}[experts.solo.iterate]\nmaxIterations = 1\n"
TEST = f'{SOLO}[[experts.solo.tests]]\nname = "a"\nquery = "q"\n[experts.solo.tests.expect]\n'


def calls_on(path: str) -> list[tuple[str, dict[str, str]]]:
    return [
        ("writeTextFile", {"path": path, "text": "x"}),
        ("moveFile", {"source": "mine", "destination": path}),
        ("moveFile", {"source": path, "destination": "taken"}),
        ("deleteFile", {"path": path}),
    ]


def outcomes(terminal: Terminal, toml: str, path: str, *args: str) -> list[str]:
    """Return the results of an Expert's calls that would change a file."""
    (terminal.workspace / "mine").write_text("mine")
    terminal.project(toml, solo=[*(reply("", call) for call in calls_on(path)), reply("ok")])
    result = terminal.call("run", "solo", "q", "--provider", "scripted", *args)
    assert result.code == 0, result.err
    return [event["contents"][0]["text"] for event in result.events if event["type"] == "finishToolCall"]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    ("toml", "path"),
    [
        (f'{ITERATE}evaluator = ["python3", "check.py"]\n', "check.py"),
        (f'{ITERATE}evaluator = "cd tools && ./check"\n', "tools/check"),
        (f'{ITERATE}evaluator = ["sh", "-c", "python3 -u ./a/../check.py"]\n', "CHECK.PY"),
        (f'{TEST}command = "sh tests/check.sh"\n', "tests/check.sh"),
        (f'{TEST}command = ["python3", "check.py"]\n', "./check.py"),
        (f'{SOLO}[permissions]\nallow = ["exec(python3 tools/count.py *)"]\n', "tools/count.py"),
        (f'[audit]\nanchor = ["./send.sh"]\n{SOLO}', "send.sh"),
    ],
)
def test_an_expert_does_not_change_what_a_command_of_the_definition_runs(
    terminal: Terminal, toml: str, path: str, exists: bool
) -> None:
    file = terminal.workspace / path
    if exists:
        file.parent.mkdir(exist_ok=True)
        (terminal.workspace / path.lower()).write_text("exit 0")
    written, moved, *gone = outcomes(terminal, toml, path)
    assert "may only read" in written
    assert "may only read" in moved
    assert all("may only read" in text or "does not exist" in text for text in gone), gone
    assert not exists or (terminal.workspace / path.lower()).read_text() == "exit 0"
    assert exists or not file.exists()


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("node grade", "grade.js"),
        ("node ./grade", "grade.mjs"),
        ("node lib", "lib/index.js"),
        ("java Grade", "Grade.class"),
    ],
)
def test_a_program_that_is_named_without_its_ending_is_protected(terminal: Terminal, command: str, file: str) -> None:
    path = terminal.workspace / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("exit 0")
    written, moved, *gone = outcomes(terminal, f"{ITERATE}evaluator = {command.split()}\n", file)
    assert all("may only read" in text for text in (written, moved, *gone)), (written, moved, gone)
    assert path.read_text() == "exit 0"


def test_a_file_that_would_run_instead_of_one_with_an_ending_is_not_created(terminal: Terminal) -> None:
    (terminal.workspace / "grade.js").write_text("exit 0")
    written, *_ = outcomes(terminal, f'{ITERATE}evaluator = ["node", "grade"]\n', "grade")
    assert "may only read" in written


def test_the_command_of_a_waiting_task_is_protected(terminal: Terminal) -> None:
    (terminal.workspace / "ready.sh").write_text("exit 1")
    terminal.project(SOLO)
    assert terminal.call("task", "create", "t1").code == 0
    assert terminal.call("task", "start", "t1").code == 0
    paused = terminal.call("task", "pause", "t1", "--reason", "external_dependency", "--command", "sh ready.sh")
    assert paused.code == 0, paused.err
    written, *_ = outcomes(terminal, SOLO, "ready.sh")
    assert "may only read" in written
    assert (terminal.workspace / "ready.sh").read_text() == "exit 1"


def test_a_rule_that_names_a_result_lets_an_expert_write_what_is_measured(terminal: Terminal) -> None:
    rules = '[permissions]\nallow = ["writeTextFile(draft.md)"]\n'
    written, *_ = outcomes(terminal, f'{ITERATE}evaluator = ["python3", "check.py", "draft.md"]\n{rules}', "draft.md")
    assert "may only read" not in written


@pytest.mark.parametrize(
    "name", [".config/perstack/logins/a.json", ".local/state/perstack/http/token", ".cache/perstack/x"]
)
@pytest.mark.parametrize("way", ["home", "variables", "another day", "link"])
def test_the_users_folders_are_out_of_reach(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory, name: str, way: str
) -> None:
    home = terminal.workspace if way != "link" else terminal.workspace.parent / "home"
    terminal.env["HOME"] = str(home)
    del terminal.env["XDG_STATE_HOME"]
    for variable, folder in (("CONFIG", ".config"), ("STATE", ".local/state"), ("CACHE", ".cache")):
        terminal.env.pop(f"XDG_{variable}_HOME", None)
        if way == "variables":
            terminal.env[f"XDG_{variable}_HOME"] = str(terminal.workspace / "xdg" / folder)
        if way == "another day":  # what was kept before the variables were set is still there
            terminal.env[f"XDG_{variable}_HOME"] = str(tmp_path_factory.mktemp("xdg") / folder)
    path = (home if way != "variables" else home / "xdg") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("SECRET")
    if way == "link":
        (terminal.workspace / "home").symlink_to(home)
    seen = {"home": name, "another day": name, "variables": f"xdg/{name}", "link": f"home/{name}"}[way]
    texts = outcomes(terminal, SOLO, seen)
    assert all("off limits" in text or "outside the workspace" in text for text in texts), texts
    assert path.read_text() == "SECRET"


@pytest.mark.parametrize("name", ["sub/perstack/.rewinds/a.json", "sub/perstack/jobs/j/job.json", "sub/PERSTACK/x"])
def test_an_expert_plants_no_state_in_another_project(terminal: Terminal, name: str) -> None:
    sub = terminal.workspace / "sub"
    sub.mkdir()
    (sub / "perstack.toml").write_text(SOLO)
    texts = outcomes(terminal, SOLO, name)
    assert all("off limits" in text or "does not exist" in text for text in texts) or name == "sub/PERSTACK/x", texts
    assert "off limits" in texts[0]
    assert [path.name for path in sub.iterdir()] == ["perstack.toml"]


def test_validate_does_not_search_a_disk(terminal: Terminal, tmp_path: Path) -> None:
    many = tmp_path / "many"
    for number in range(11):
        (many / str(number)).mkdir(parents=True)
        for file in range(1_000):
            (many / str(number) / str(file)).touch()
    for pattern in (f"{many}/**/x", f"../{tmp_path.name}/many/**/x", f"{many}/*/x*"):
        terminal.project(f'include = ["{pattern}"]\n{SOLO}')
        result = terminal.call("validate")
        assert result.code == 2, pattern
        assert "looks at more than 10000 files and folders: name a smaller folder" in result.out + result.err
