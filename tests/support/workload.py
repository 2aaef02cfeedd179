"""Projects for crash tests: a team with parallel and nested delegates, effects, and a question."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from terminal import reply

TEAM = """
storage = "{storage}"
[experts.boss]
instruction = "You lead."
delegates = ["left", "right"]
ask = true
[experts.left]
instruction = "You take the left."
delegates = ["leaf"]
[experts.right]
instruction = "You take the right."
[experts.leaf]
instruction = "You are deep down."
"""

FILES = ("boss.txt", "left.txt", "right.txt", "leaf.txt")


def _append(name: str) -> tuple[str, dict[str, Any]]:
    return "appendTextFile", {"path": f"{name}.txt", "text": f"{name}\n"}


def team(folder: Path, aside: Path, storage: str, rules: str = "") -> None:
    """Write the project with these permission rules into `folder`, and its script into `aside`."""
    (folder / "perstack.toml").write_text(TEAM.format(storage=storage) + rules)
    for name in FILES:
        (folder / name).touch()
    paid = (10, 1)
    script(
        aside,
        boss=[
            reply("", ("todo", {"newTodos": ["t"]}), _append("boss"), usage=paid),
            reply(
                "",
                ("left", {"query": "L"}),
                ("right", {"query": "R"}),
                ("readTextFile", {"path": "boss.txt"}),
                usage=paid,
            ),
            reply("", ("askUser", {"question": "sure?"}), ("todo", {"completedTodos": [0]}), usage=paid),
            reply("", ("attemptCompletion", {}), usage=paid),
            reply("all is done", usage=paid),
        ],
        left=[
            reply("", _append("left"), usage=paid),
            reply("", ("leaf", {"query": "deep"}), usage=paid),
            reply("left is done", usage=paid),
        ],
        right=[reply("", _append("right"), usage=paid), reply("right is done", usage=paid)],
        leaf=[reply("", _append("leaf"), usage=paid), reply("leaf is done", usage=paid)],
    )


def script(aside: Path, **turns: list[dict[str, Any]]) -> None:
    """Write each Expert's turns."""
    experts = {key: {"turns": each} for key, each in turns.items()}
    (aside / "script.json").write_text(json.dumps({"experts": experts}))


def env(aside: Path) -> dict[str, str]:
    """Return the environment of every process."""
    return {
        "PATH": os.environ["PATH"],
        "PERSTACK_PLUGINS": "perstack.testing.plugin",
        "PERSTACK_SCRIPT": str(aside / "script.json"),
        "TZ": "UTC",
        "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
    }


WORKER = """
storage = "{storage}"
[experts.worker]
instruction = "You work alone."
[experts.worker.iterate]
evaluator = ["sh", "-c", "echo '{{\\"score\\": 1}}'"]
maxIterations = 2
"""


def worker(folder: Path, aside: Path, storage: str) -> None:
    """Write a project with one Expert, for a task or a series."""
    (folder / "perstack.toml").write_text(WORKER.format(storage=storage))
    (folder / "worker.txt").touch()
    script(aside, worker=[reply("", _append("worker"), usage=(10, 1)), reply("made", usage=(10, 1))])


SMALL_WINDOW = """
storage = "{storage}"
contextWindow = 2000
keepResults = 1
keepRecent = 0.1
compaction = {{ expert = "notes" }}
[experts.boss]
instruction = "You lead."
delegates = ["left"]
[experts.left]
instruction = "You take the left."
[experts.notes]
instruction = "You shorten."
"""


def small_window(folder: Path, aside: Path, storage: str) -> None:
    """Write a project whose Coordinator and delegate fill their windows: results shrink, turns are summarised."""
    (folder / "perstack.toml").write_text(SMALL_WINDOW.format(storage=storage))
    for name in ("boss", "left"):
        (folder / f"{name}.txt").touch()
    (folder / "long.txt").write_text("a line of a long text\n" * 200)

    def works(name: str) -> list[dict[str, Any]]:
        return [
            reply("", ("todo", {"newTodos": ["t"]}), ("readTextFile", {"path": "long.txt"}), usage=(100, 10)),
            reply("thought about it " * 20, _append(name), usage=(1500, 10)),
            reply("thought again " * 20, _append(name), usage=(1900, 10)),
            reply("and once more " * 20, _append(name), usage=(1900, 10)),
        ]

    end = [reply("", ("todo", {"completedTodos": [0]}), usage=(500, 10))]
    script(
        aside,
        boss=[
            *works("boss"),
            reply("", ("left", {"query": "L"}), usage=(500, 10)),
            *end,
            reply("boss is done", usage=(500, 10)),
        ],
        left=[*works("left"), *end, reply("left is done", usage=(500, 10))],
        notes=[{**reply("files were read and written", usage=(300, 20)), "repeat": True}],
    )


def spread(boundaries: int, number: int) -> list[int]:
    """Return `number` of the boundaries, evenly spread, including the first and the last."""
    if number >= boundaries:
        return list(range(1, boundaries + 1))
    return sorted({1 + round(index * (boundaries - 1) / (number - 1)) for index in range(number)})


ASKS = """
storage = "{storage}"
[experts.small]
instruction = "You ask."
ask = true
[experts.other]
instruction = "You say a thing."
"""


def asking(folder: Path, storage: str) -> None:
    """Write a project and its script, with one Expert that asks and one that is done at once."""
    (folder / "perstack.toml").write_text(ASKS.format(storage=storage))
    ask = reply("", ("askUser", {"question": "sure?"}), usage=(10, 1))
    script(folder, small=[ask, reply("done", usage=(10, 1))], other=[reply("said", usage=(10, 1))])
