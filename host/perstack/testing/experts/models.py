"""What plays the model of a test: a script, a recording, or the real one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from perstack.config.expert_tests import WrittenTest
from perstack.config.settings import Overrides
from perstack.core.recording.tools import HowToRun
from perstack.dataclass import dataclass
from perstack.engine.plugins import EXTRA_MODULES
from perstack.errors import UsageError
from perstack.ports.environment import Environment
from perstack.testing.recorded import read_recording, recorded
from perstack.testing.scripted import Script, ScriptedProvider, ScriptLike, load_script

_SCRIPTED = "perstack.testing.plugin"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Played:
    """How a Host is made whose model this is."""

    overrides: Overrides
    plugins: tuple[object, ...] = ()
    hides: tuple[str, ...] = field(default=())
    """Modules of PERSTACK_PLUGINS that bring the same."""

    def env(self, env: Environment) -> Environment:
        """The environment for such a Host."""
        modules = [name.strip() for name in env.get(EXTRA_MODULES, "").split(",")]
        if not any(name in self.hides for name in modules):
            return env
        kept = ",".join(name for name in modules if name not in self.hides)
        return Environment(
            {**env, EXTRA_MODULES: kept}, unconfirmed=env.unconfirmed, files=env.files, left_out=env.left_out
        )


def model_of(written: WrittenTest, overrides: Overrides) -> Played:
    """What plays the model: `overrides` are for the real one. Raises UsageError for a file that cannot be used."""
    if written.model is None:
        return Played(overrides)
    return played_from(written.model, written.test.live)


def played_from(path: Path, live: Iterable[str] = ()) -> Played:
    """A script, or a recording with which these tools are really called besides those that write files.

    Raises UsageError.
    """
    script = _script(path)
    if script is not None:
        return played_script(script)
    tools: dict[str, HowToRun] = dict.fromkeys(live, "live")
    return Played(recorded(path, tools=tools or None))


def played_script(script: ScriptLike) -> Played:
    """A script plays the model of every Expert."""
    return Played(Overrides(provider="scripted"), (ScriptedProvider(script),), (_SCRIPTED,))


def check_models(tests: Iterable[WrittenTest]) -> None:
    """Raises UsageError for the first script or recording that cannot be used."""
    for written in tests:
        if written.model is not None:
            _script(written.model)


def _script(path: Path) -> Script | None:
    """The script; None for a recording. Raises UsageError."""
    try:
        now = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    return _read(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Script | None:
    """A file as it stood at that time, which is parsed once for many Jobs."""
    if size > _MOST_BYTES:
        raise UsageError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is neither a script nor a recording: {error}") from None
    if isinstance(found, dict) and "format" in found:
        read_recording(path)
        return None
    return load_script(path)
