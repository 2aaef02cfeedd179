"""The commands on a PostgreSQL storage: its address is in a variable, and no secret of it is shown or kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from terminal import ASKING, TEAM, Result, Terminal, reply

SECRET = "hush-hush-hush"


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    """With a password, which this server does not ask for."""
    return postgres.address().replace("postgres@", f"postgres:{SECRET}@")


@pytest.fixture
def project(terminal: Terminal, address: str) -> Terminal:
    """Whose storage is named by a variable."""
    terminal.env["DATABASE_URL"] = address
    return terminal.project(
        f'storage = "${{DATABASE_URL}}"\n{TEAM}{ASKING}',
        lead=[reply("", ("helper", {"query": "a part"})), reply("All is done.", usage=(10, 1))],
        helper=[reply("A part.", usage=(5, 1))],
        guest=[reply("", ("askUser", {"question": "which?"})), reply("Done.")],
    )


def text_of(postgres: PostgresServer, address: str) -> str:
    """All that is kept in the schema."""
    schema = address.rpartition("schema=")[2]
    tables = [name for (name,) in postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", schema)]
    columns = {"jobs": "summary", "runs": "setting", "records": "line", "entries": "entry", "checkpoints": "data"}
    return "".join(
        bytes(value).decode(errors="replace")
        for table in tables
        if table in columns
        for (value,) in postgres.execute(f"SELECT {columns[str(table)]} FROM {schema}.{table}")
        if isinstance(value, bytes)
    )


def test_a_job_lives_in_it_and_no_command_shows_its_password(
    project: Terminal, postgres: PostgresServer, address: str
) -> None:
    scripted = ("--provider", "scripted")
    done: list[Result] = [
        project.call("run", "lead", "Do it", "--job-id", "team", *scripted),
        project.call("run", "guest", "Ask", "--job-id", "asking", *scripted),
        project.call("inbox"),
        project.call("answer", "asking", "this one", *scripted),
        project.call("jobs"),
        project.call("jobs", "--json"),
        project.call("log", "team"),
        project.call("log", "team", "--json"),
        project.call("verify"),
        project.call("replay", "team"),
        project.call("du"),
        project.call("expert", "show", "lead"),
        project.call("validate"),
        project.call("mcp", "--print-config", "zed"),
        project.call("export", "team", "--format", "json"),
        project.call("doctor"),
        project.call("log", "nowhere"),
    ]
    assert [one.code for one in done[:-2]] == [0, 3, *[0] * 13], [one.err for one in done if one.code]
    assert json.loads(done[5].lines[0])["id"] == "asking"
    shown = "".join(one.out + one.err for one in done)
    kept = text_of(postgres, address)
    assert '"storage":"postgresql:///postgres?host=' in done[0].out
    assert "All is done." in kept
    files = "".join(path.read_text(errors="replace") for path in project.workspace.rglob("*") if path.is_file())
    for text in (shown, kept, files):
        assert SECRET not in text
    assert not (project.workspace / "perstack").exists()


def test_a_dotenv_file_may_hold_its_address_for_every_command(terminal: Terminal, project: Terminal) -> None:
    (project.workspace / ".env").write_text(f"DATABASE_URL='{project.env.pop('DATABASE_URL')}'\n")
    done = project.call("run", "lead", "Do it", "--job-id", "team", "--provider", "scripted")
    assert done.code == 0, done.err
    for command in ("jobs", "log", "verify", "inbox"):
        assert project.call(command).code == 0
    assert project.call("jobs", "--storage", "${DATABASE_URL}", "--json").lines[0].startswith('{"id":"team"')
    assert "team" in project.call("task", "list").out or project.call("task", "list").code == 0


def test_a_password_of_ones_own_does_not_go_to_where_a_workspace_says(project: Terminal) -> None:
    (project.workspace / ".env").write_text(f"DATABASE_URL='{project.env.pop('DATABASE_URL')}'\n")
    password = {"PGPASSWORD": "mine"}
    done = project.as_stranger().call("jobs", env=password)
    assert done.code == 2
    assert "`storage` needs DATABASE_URL" in done.err
    assert SECRET not in done.err
    assert project.call("trust", "--yes").code == 0
    assert project.call("jobs", env=password).code == 0
    (project.workspace / ".env").write_text("DATABASE_URL=postgresql://elsewhere.example/jobs\n")
    done = project.call("jobs", env=password)
    assert (done.code, "`storage` needs DATABASE_URL" in done.err) == (2, True), done.err


def test_a_variable_that_is_not_set_is_named(project: Terminal) -> None:
    del project.env["DATABASE_URL"]
    for command in (("jobs",), ("run", "lead", "Do it", "--provider", "scripted"), ("doctor",)):
        done = project.call(*command)
        assert done.code == 2
        assert done.err.splitlines()[-1].endswith(
            "`storage` needs DATABASE_URL: set it in the environment or in a .env file"
        )


def test_a_password_that_is_written_down_is_warned_of(project: Terminal, address: str) -> None:
    assert "secret" not in project.call("validate").out
    path = project.workspace / "perstack.toml"
    path.write_text(path.read_text().replace("${DATABASE_URL}", address))
    warned = project.call("validate")
    assert warned.code == 0
    assert "holds what looks like a secret: write `${VAR}` in its place" in warned.out + warned.err
    assert SECRET not in warned.out + warned.err


def test_a_server_that_cannot_be_reached_is_one_line_with_its_place(project: Terminal, tmp_path: Path) -> None:
    project.env["DATABASE_URL"] = f"postgresql://me:{SECRET}@/jobs?host={tmp_path}"
    done = project.call("jobs")
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert f"postgresql:///jobs?host={tmp_path}: " in line
    assert line.endswith("check that the server runs and can be reached")
    doctor = project.call("doctor", "--json")
    found = {one["about"]: one for one in json.loads(doctor.out)["findings"]}
    assert found["state, server"]["state"] == "problem"
    assert "me@" not in done.err + doctor.out
    assert SECRET not in done.err + doctor.out + doctor.err


def test_doctor_says_what_is_there(project: Terminal) -> None:
    found = {one["about"]: one for one in json.loads(project.call("doctor", "--json").out)["findings"]}
    assert found["state, server"]["state"] == found["state, rights"]["state"] == "ok"
    assert "PostgreSQL 18" in found["state, server"]["text"]


def test_without_the_driver_it_says_how_to_install_it(project: Terminal) -> None:
    hidden = (
        "import importlib.util as u; old = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'psycopg' else old(name, *more)"
    )
    (project.workspace / "sitecustomize.py").write_text(hidden)
    done = project.run("jobs", env={"PYTHONPATH": str(project.workspace)})
    assert done.code == 2
    assert done.err.strip().endswith("PostgreSQL needs its driver: pip install 'perstack[postgres]'")


def test_a_job_is_shown_while_another_process_drives_it(project: Terminal) -> None:
    done = project.call("run", "lead", "Do it", "--job-id", "team", "--provider", "scripted")
    assert done.code == 0, done.err
    assert project.call("log", "team", "--follow").code == 0
