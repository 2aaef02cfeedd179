"""What a project begins with writes: folders of files, in each a perstack.toml with a place for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.errors import UsageError

DEFINITION = "perstack.toml"
SCHEMA = ".perstack.schema.json"
"""What editors check perstack.toml by, beside it: its name begins with a dot, for nobody has to look at it."""
_FOLDER = Path(__file__).with_name("starters")
_SHIPPED_SCHEMA = Path(__file__).with_name("perstack.schema.json")
_TRY = "# Try it:"


@dataclass(frozen=True, slots=True)
class Template:
    """A project to begin with."""

    name: str
    about: str
    """In a line."""
    command: str
    """To try it with."""
    files: Mapping[str, str]
    """By their names, seen from the project's folder."""

    def filled(self, model: str) -> Mapping[str, str]:
        """The files, with these lines about the model in perstack.toml, and the schema that its first line names."""
        definition = self.files[DEFINITION].replace("{model}", model, 1)
        schema = _SHIPPED_SCHEMA.read_text(encoding="utf-8")
        return {**self.files, DEFINITION: f"#:schema ./{SCHEMA}\n{definition}", SCHEMA: schema}


def templates() -> Mapping[str, Template]:
    """All there are, by name; the first is the plainest."""
    names = sorted((path.name for path in _FOLDER.iterdir()), key=lambda name: (name != "writer", name))
    return {name: _read(name) for name in names}


def model_lines(provider: str, model: str) -> str:
    """TOML that names both. Raises UsageError for a name that has control characters."""
    return f"model = {_text(model)}\nprovider.providerName = {_text(provider)}"


def _text(name: str) -> str:
    if not name.isprintable():
        raise UsageError(f"{name!r} cannot be the name of a model or a provider")
    return json.dumps(name, ensure_ascii=False)


def _read(name: str) -> Template:
    folder = _FOLDER / name
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}
    about, attempt, *_ = files[DEFINITION].splitlines()
    return Template(name, about.removeprefix("#").strip(), attempt.removeprefix(_TRY).strip(), files)
