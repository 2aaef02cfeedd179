"""Templates of new projects: folders of files, in each a perstack.toml with a placeholder for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from perstack.config.project_place import SHIPPED_SCHEMA
from perstack.dataclass import dataclass
from perstack.errors import UsageError

DEFINITION = "perstack.toml"
SCHEMA = ".perstack.schema.json"  # schema file for editors, next to perstack.toml; hidden, because only editors read it
_TEMPLATES_FOLDER = Path(__file__).with_name("starters")
_COMMAND_PREFIX = "# Try it:"


@dataclass(frozen=True, slots=True)
class Template:
    """Template of a new project."""

    name: str
    about: str
    command: str
    files: Mapping[str, str]  # contents by path, relative to the project's folder

    def render(self, model: str) -> Mapping[str, str]:
        """Return the files with lines about the model, and the schema that perstack.toml's first line names."""
        definition = self.files[DEFINITION].replace("{model}", model, 1)
        schema = SHIPPED_SCHEMA.read_text(encoding="utf-8")
        return {**self.files, DEFINITION: f"#:schema ./{SCHEMA}\n{definition}", SCHEMA: schema}


def templates() -> Mapping[str, Template]:
    """Return all templates by name, the simplest first."""
    names = sorted((path.name for path in _TEMPLATES_FOLDER.iterdir()), key=lambda name: (name != "writer", name))
    return {name: _read_template(name) for name in names}


def model_lines(provider: str, model: str) -> str:
    """Return TOML that names the model and the provider. Raises UsageError for a name with control characters."""
    return f"model = {_toml_string(model)}\nprovider.providerName = {_toml_string(provider)}"


def _toml_string(name: str) -> str:
    if not name.isprintable():
        raise UsageError(f"{name!r} cannot be the name of a model or a provider")
    return json.dumps(name, ensure_ascii=False)


def _read_template(name: str) -> Template:
    folder = _TEMPLATES_FOLDER / name
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}
    about, attempt, *_ = files[DEFINITION].splitlines()
    return Template(name, about.removeprefix("#").strip(), attempt.removeprefix(_COMMAND_PREFIX).strip(), files)
