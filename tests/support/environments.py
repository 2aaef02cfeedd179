"""Virtual environments of tests: with what perstack needs, and without perstack itself."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def link_dependencies(site: Path) -> None:
    """Make the packages of this environment importable in another one, by its site folder, but for perstack's own.

    Links to each, because a path to all of them would bring the metadata of perstack and of its plugins with it.
    """
    linked = site.parent / "others"
    linked.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "perstack" not in path.name and path.suffix != ".pth":
            (linked / path.name).symlink_to(path)
    (site / "others.pth").write_text(f"{linked}\n")
