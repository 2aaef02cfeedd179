"""Programs inside a bubblewrap sandbox, and the same ones outside."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hosts import wait_for

from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import Overrides
from perstack.errors import UsageError
from perstack.host import Host
from perstack.ports.environment import inherit_variables
from perstack.ports.runtime import LOCAL_RUNTIME, Ending, Program, Surroundings
from perstack.system.processes import await_start, end_with_block
from perstack.testing.scripted import ScriptedProvider
from perstack_bubblewrap.plugin import BubblewrapFactory

SCRIPTED = Overrides(provider="scripted")

PYTHON = os.path.realpath(sys.executable)
"""The interpreter outside the virtual environment."""


@dataclass(frozen=True)
class Ran:
    status: int
    output: str
    ending: Ending = field(default_factory=Ending)


@dataclass
class Box:
    """A workspace, a home folder with keys, and a folder that must stay unreachable."""

    workspace: Path
    home: Path
    elsewhere: Path
    policy: SandboxPolicy
    around: Surroundings

    def run(self, line: str, *, inside: bool = True, seconds: float = 30, **env: str) -> Ran:
        """Run a shell line, in the sandbox or outside."""
        return wait_for(self._run_program(("sh", "-c", line), env, inside), seconds)

    def python(self, code: str, *, inside: bool = True) -> Ran:
        return wait_for(self._run_program((PYTHON, "-c", code), {}, inside))

    def with_policy(self, **fields: object) -> Box:
        return replace(self, policy=self.policy.model_copy(update=fields))

    def program(self, line: str) -> Program:
        """Return a shell line as a program whose output is discarded."""
        env = inherit_variables(self.around.env)
        python = (Path(sys.base_prefix),)
        return Program(("sh", "-c", line), self.workspace, env, DEVNULL, DEVNULL, DEVNULL, readable=python)

    async def _run_program(self, argv: tuple[str, ...], env: dict[str, str], inside: bool) -> Ran:
        factory = BubblewrapFactory()
        runtime = await factory.prepare(self.policy, self.around) if inside else LOCAL_RUNTIME
        out = self.elsewhere / "out"
        try:
            with out.open("wb") as file:
                variables = {**inherit_variables(self.around.env), "PWD": str(self.workspace), **env}
                python = (Path(sys.base_prefix),)
                program = Program(argv, self.workspace, variables, DEVNULL, file, file, readable=python)
                process = await await_start(asyncio.create_task(runtime.start(program)))
                async with end_with_block(process):
                    status = await process.wait()
            return Ran(status, out.read_text(errors="replace"), runtime.ending(process))
        finally:
            await runtime.close()


@pytest.fixture(scope="session")
def usable() -> None:
    """Skip the test with the reason where no sandbox can be used."""
    around = Surroundings(Path("/nowhere"), "job", dict(os.environ))
    try:
        wait_for(BubblewrapFactory().check(SandboxPolicy(runtime="bubblewrap"), around))
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def box(usable: None, tmp_path: Path) -> Box:
    workspace, home, elsewhere = (tmp_path / name for name in ("work", "home", "elsewhere"))
    for folder in (workspace, home / ".ssh", elsewhere, workspace / "perstack"):
        folder.mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("SECRET")
    (elsewhere / "file").write_text("SECRET")
    (workspace / "perstack" / "state").write_text("SECRET")
    (workspace / "perstack.toml").write_text("model = 'm'\n")
    policy = SandboxPolicy(runtime="bubblewrap")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CANARY": "SECRET"}
    around = Surroundings(
        workspace, "job", env, hidden=(workspace / "perstack",), protected=(workspace / "perstack.toml",)
    )
    return Box(workspace, home, elsewhere, policy, around)


def host(
    workspace: Path,
    script: dict,
    *experts,
    env: dict[str, str] | None = None,
    overrides: Overrides = SCRIPTED,
    **fields,
) -> Host:
    """Return a Host whose Experts' programs run in a sandbox."""
    project = Project(experts={one.key: one for one in experts}, runtime="bubblewrap", **fields)
    given = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TOKEN": "secret", **(env or {})}
    provider = ScriptedProvider(script)
    return Host(project, workspace=workspace, env=given, overrides=overrides, plugins=[provider])
