"""Servers and tools that nobody here wrote do their work inside a sandbox, and reach no more than it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hosts import Seen, expert, results, wait_for
from npm import mcp_servers
from sandbox_programs import PYTHON, host

from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.testing.scripted import text, tool, turn

pytestmark = pytest.mark.timeout(350)  # the first time, packages are installed

PYTHONS = (sys.prefix, sys.base_prefix)
PLENTY = 120_000


def work(folder: Path, skill: McpStdioSkill | None, *calls, runtime: str = "bubblewrap", **fields) -> Seen:
    """The calls, made one after the other by an Expert with this skill."""
    one, seen = expert("a"), Seen()
    if skill is not None:
        one = one.model_copy(update={"skills": (skill.model_copy(update={"required": True, "timeout": PLENTY}),)})
    script = {"[[a]]": [*(turn(tool(name, args)) for name, args in calls), text("ok")]}
    sandbox = Sandbox(**fields) if runtime == "bubblewrap" else None
    env = {"MEMORY_FILE_PATH": str(folder / "memory.json")}
    overrides = Overrides(provider="scripted", runtime=runtime)
    run = host(folder, script, one, env=env, sandbox=sandbox, overrides=overrides).run("a", "q", on_event=seen)
    job = wait_for(run, 300)
    assert job.status == "completed", [seen.of("stopRunByError"), seen.of("skillStderr")]
    return seen


@pytest.fixture
def workspace(usable: None, tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("inside")
    (folder / ".env").write_text("SECRET")
    return folder


@pytest.mark.parametrize("runtime", ["local", "bubblewrap"])
def test_server_filesystem_reads_and_writes_the_workspace_and_sees_no_variables(workspace: Path, runtime: str) -> None:
    bin_folder = mcp_servers()
    server = McpStdioSkill(name="files", command=str(bin_folder / "mcp-server-filesystem"), args=(str(workspace),))
    seen = work(
        workspace,
        server,
        ("read_text_file", {"path": f"{workspace}/note.txt"}),
        ("write_file", {"path": f"{workspace}/made", "content": "made"}),
        ("read_text_file", {"path": f"{workspace}/.env"}),
        runtime=runtime,
        readable=(str(bin_folder.parents[1]),),
    )
    note, variables = results(seen, "read_text_file")
    assert "inside" in note
    assert (workspace / "made").read_text() == "made"
    assert ("SECRET" in variables) is (runtime == "local"), "outside is the control"


def test_server_git_reads_a_repository_and_changes_nothing_in_it(workspace: Path) -> None:
    pytest.importorskip("mcp_server_git")
    git = ["git", "-C", str(workspace), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for args in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "a note"]):
        subprocess.run([*git, *args], check=True)
    before = (workspace / ".git" / "index").read_bytes()
    server = McpStdioSkill(name="git", command=sys.executable, args=("-m", "mcp_server_git"))
    path = str(workspace)
    seen = work(
        workspace,
        server,
        ("git_add", {"repo_path": path, "files": ["note.txt"]}),
        ("git_status", {"repo_path": path}),
        ("git_log", {"repo_path": path}),
        readable=PYTHONS,
    )
    assert "Read-only file system" in results(seen, "git_add")[0]
    assert "note.txt" in results(seen, "git_status")[0]
    assert "a note" in results(seen, "git_log")[0]
    assert (workspace / ".git" / "index").read_bytes() == before


def test_server_memory_keeps_its_file_in_the_workspace(workspace: Path) -> None:
    command = mcp_servers() / "mcp-server-memory"
    server = McpStdioSkill(name="memory", command=str(command), required_env=("MEMORY_FILE_PATH",))
    entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    seen = work(
        workspace,
        server,
        ("create_entities", {"entities": [entity]}),
        ("read_graph", {}),
        readable=(str(command.parents[2]),),
    )
    assert "Ada" in results(seen, "read_graph")[0]
    assert "Ada" in (workspace / "memory.json").read_text()


@contextmanager
def index(folder: Path) -> Iterator[int]:
    """A package index on the loopback of the host, with one package."""
    files = {"tinypkg/__init__.py": "def answer() -> int:\n    return 42\n"}
    about = "tinypkg-1.0.dist-info"
    files[f"{about}/METADATA"] = "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data.encode()).digest()) for name, data in files.items()}
    rows = [f"{name},sha256={digests[name].decode().rstrip('=')},{len(data)}\n" for name, data in files.items()]
    files[f"{about}/RECORD"] = "".join(rows) + f"{about}/RECORD,,\n"
    place = folder / "simple" / "tinypkg"
    place.mkdir(parents=True)
    wheel = place / "tinypkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    (place / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>\n')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("listed", [True, False])
def test_a_package_is_fetched_through_the_allowlist_and_tests_are_run_with_it(workspace: Path, listed: bool) -> None:
    pytest.importorskip("proxy", reason="the proxy is an extra: perstack[sandbox]")
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{PYTHON} has no pip, which the build needs")
    (workspace / "test_answer.py").write_text(
        "import tinypkg\n\n\ndef test_the_answer():\n    assert tinypkg.answer() == 42\n"
    )
    with index(workspace.parent / "index") as port:
        fetch = f"{PYTHON} -m pip install -q --no-cache-dir --retries 0 --target deps"
        fetch += f" --index-url http://localhost:{port}/simple --disable-pip-version-check tinypkg"
        pytest_there = f"{sys.executable} -m pytest -q -p no:cacheprovider -p no:perstack"
        line = f"{fetch} && PYTHONPATH=deps {pytest_there} test_answer.py"
        seen = work(
            workspace,
            None,
            ("exec", {"command": "sh", "args": ["-c", line], "timeout": PLENTY}),
            readable=PYTHONS,
            network=(f"localhost:{port if listed else 9999}",),
        )
    result = json.loads(results(seen, "exec")[0])
    assert (result["exitCode"] == 0, "1 passed" in result["output"]) == (listed, listed), result
    assert (workspace / "deps" / "tinypkg").exists() is listed
