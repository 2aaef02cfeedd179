"""`perstack doctor`: missing requirements of this machine, and their remedies."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from terminal import Terminal

KEY = {"ANTHROPIC_API_KEY": "sk-not-to-be-shown-anywhere"}


@pytest.fixture
def machine(terminal: Terminal) -> Terminal:
    """Return the terminal of a machine without a key and without the embedded model."""
    terminal.env = {"PATH": terminal.env["PATH"], "HOME": str(terminal.workspace)}
    return terminal


def findings(machine: Terminal, *args: str, code: int = 0, **env: str) -> dict[str, dict[str, Any]]:
    result = machine.run("doctor", "--json", *args, env=env)
    assert (result.code, result.err) == (code, "")
    assert KEY["ANTHROPIC_API_KEY"] not in result.out
    return {finding["about"]: finding for finding in json.loads(result.out)["findings"]}


def test_with_a_key_nothing_is_in_the_way(machine: Terminal) -> None:
    found = findings(machine, **KEY)
    assert [about for about, one in found.items() if one["state"] == "problem"] == []
    assert found["provider anthropic"]["text"].startswith("the default")
    assert found["provider openai"]["remedy"] == "set OPENAI_API_KEY"
    assert found["state"]["text"].startswith(f"{machine.workspace}/perstack, ")
    assert found["Python"]["state"] == found["extra testing"]["state"] == found["runtime local"]["state"] == "ok"


def test_without_any_provider_it_says_so_and_fails(machine: Terminal) -> None:
    assert findings(machine, code=1)["a model"]["text"] == "no provider is set up, so no Expert can be run"


def test_a_provider_that_the_definition_names_has_to_be_set_up(machine: Terminal) -> None:
    named = 'provider.providerName = "openai"\n[experts.a]\ninstruction = "x"\n'
    (machine.workspace / "perstack.toml").write_text(named)
    found = findings(machine, code=1, **KEY)
    assert found["provider openai"]["text"] == "perstack.toml names it, but it is not set up"


def test_a_place_that_cannot_be_written_is_a_problem(machine: Terminal) -> None:
    (machine.workspace / "file").touch()
    found = findings(machine, "--storage", f"sqlite:{machine.workspace}/file/state.db", code=1, **KEY)
    assert found["state"]["text"].endswith("file is not a folder")
    assert found["state"]["remedy"] == "name another place as the storage"


def test_an_extra_that_is_not_installed_has_the_command_that_installs_it(machine: Terminal) -> None:
    hidden = (
        "import importlib.metadata as m; old = m.version;"
        " m.version = lambda n: old('no' if n == 'perstack-bedrock' else n)"
    )
    (machine.workspace / "sitecustomize.py").write_text(hidden)
    found = findings(machine, PYTHONPATH=str(machine.workspace), **KEY)
    assert found["extra bedrock"]["remedy"] == "pip install 'perstack[bedrock]'"


def test_a_person_reads_what_to_do_below_the_table(machine: Terminal) -> None:
    result = machine.run("doctor", "--all", env=KEY)
    head = result.lines.index("")
    assert result.lines[head + 1].split() == ["what", "state", "here"]
    assert "provider openai: set OPENAI_API_KEY" in result.lines


def test_what_is_wrong_comes_first_and_the_rest_is_a_line_each(machine: Terminal) -> None:
    result = machine.run("doctor")
    assert result.lines[0] == "1 problem:"
    assert result.lines[1].startswith("  a model: no provider is set up, so no Expert can be run; ")
    assert result.lines[2].startswith("fine: Python; ")
    assert result.lines[3].startswith("not set up, and not needed (--all says how): ")
    assert len(result.lines) == 4
    assert machine.run("doctor", env=KEY).lines[0] == "0 problems"


def test_on_a_narrow_terminal_what_is_wrong_is_still_whole(machine: Terminal) -> None:
    place = machine.workspace / ("a-folder-with-a-long-name-" * 3)
    place.touch()
    result = machine.call("doctor", "--storage", f"sqlite:{place}/state.db", env=KEY, columns=80)
    (line,) = (line for line in result.lines if line.startswith("  state: "))
    assert line.endswith(f": {place} is not a folder; name another place as the storage")


def test_an_endpoint_that_a_variable_names_is_tried(machine: Terminal) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = findings(machine, code=1, **KEY, ANTHROPIC_BASE_URL=url)
        refused = found["endpoint of anthropic"]
        assert (refused["state"], refused["text"]) == ("problem", f"{url} cannot be reached: connection refused")
        server.listen()
        assert findings(machine, **KEY, ANTHROPIC_BASE_URL=url)["endpoint of anthropic"]["state"] == "ok"
    assert "endpoint of anthropic" not in findings(machine, **KEY)


def test_an_endpoint_that_only_a_file_of_the_folder_names_is_not_tried(machine: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        (machine.workspace / ".env").write_text(
            f"ANTHROPIC_BASE_URL=http://127.0.0.1:{server.getsockname()[1]}\nANTHROPIC_API_KEY=sk-of-the-file\n"
        )
        result = machine.run("doctor", "--json")
        assert (result.code, "endpoint of anthropic" in result.out) == (1, False)  # nor does its key count
        assert ".env" in result.err
        assert "--env-path" in result.err
        with pytest.raises(TimeoutError):
            server.accept()
