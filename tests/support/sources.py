"""Where the packages of this repository are: those of perstack itself and of each plugin distribution."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = sorted((ROOT / "plugins").glob("perstack-*"))
"""Folders of the plugins that are distributions of their own."""
IMPORT_ROOTS = [ROOT / "host", ROOT / "plugins", *DISTRIBUTIONS]
"""Folders that Python must search for all packages."""
PACKAGES = sorted(init.parent for root in IMPORT_ROOTS for init in root.glob("perstack*/__init__.py"))
"""Folders of the packages, each of another name."""
