"""Folders of Agent Skills for tests."""

from __future__ import annotations

from pathlib import Path

from perstack.testing.scripted import tool


def make(folder: Path, *, body: str = "Use pypdf.", head: str = "", **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Reads PDFs.\n{head}---\n{body}\n")
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def load(skill: str, **args):
    return tool("loadSkill", {"name": skill, **args})
