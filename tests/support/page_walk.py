"""Follow a page of docs/ as its reader does: write its files and run its commands in order.

- A block with a title, as in ```` ```toml title="perstack.toml" ````, is a file.
- The lines of an `sh` block run in shells one after another, which share variables and folder. A line must end with the
  status in its comment (`# exit status 3`), or 0; `pip` and `make` are not run.
- A `text` block is the output of the command before it; `…` matches anything in a line, and a line of `…` alone matches
  any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pages import run_line

_BLOCK = re.compile(r"^(<!-- not run: [^\n]*-->\n+)?```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
_HANDED_ON = """S={state}; [ -e "$S" ] && . "$S"; trap '{{ export -p; printf "cd %q\\n" "$PWD"; }} >"$S"' EXIT\n"""


@dataclass
class Walk:
    """One reader in one folder."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    new: bool = False
    """Whether `perstack` is the real console script, as in `run_line`."""
    said: str = ""
    """Output of the last command."""
    lines: list[str] = field(default_factory=list)
    """The commands that were run."""

    @property
    def _state(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.shell")

    def follow(self, text: str) -> None:
        """Carry out the instructions of a page, or of a part of one."""
        for language, title, content in blocks(text):
            if title is not None:
                file = self.current_folder() / title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
            elif language == "sh":
                for line in typed(content):
                    self.run(line)
            elif language == "text":
                assert shape(content).fullmatch(self.said), f"{self.lines[-1]}\nsaid\n{self.said}\nand not\n{content}"

    def current_folder(self) -> Path:
        """Return the shell's current folder."""
        if not self._state.exists():
            return self.folder
        return Path(shlex.split(self._state.read_text().splitlines()[-1])[1])

    def run(self, line: str) -> None:
        """Run one command, and check that it ends with the status in its comment."""
        handed_on = _HANDED_ON.format(state=shlex.quote(str(self._state)))
        done = run_line(handed_on + line, self.folder, self.env, new=self.new)
        self.said = done.stdout + done.stderr
        self.lines.append(line)
        status = re.search(r"# .*exit status (\d+)", line)
        assert done.returncode == (int(status[1]) if status else 0), f"{line}\n{self.said}"


def blocks(text: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield language, title and content of each block that the reader must act on."""
    for skipped, language, info, content in _BLOCK.findall(text):
        title = re.search(r'title="([^"]+)"', info)
        if not skipped:
            yield language, title[1] if title else None, content


def typed(content: str) -> list[str]:
    """Return the complete commands of a block, without those that change the machine."""
    lines = re.sub(r"\\\n\s*", "", content).splitlines()
    return [line for line in lines if line.strip() and not line.startswith(("#", "pip ", "make ", "python3 -m venv "))]


def shape(content: str) -> re.Pattern[str]:
    """Return a pattern for the output shown on a page. Spaces at the ends of lines are ignored."""
    lines = (re.escape(line.rstrip()).replace("…", "[^\n]*") + "[ ]*\n" for line in content.splitlines())
    return re.compile("".join("(?:[^\n]*\n)*" if line == "[^\n]*[ ]*\n" else line for line in lines))
