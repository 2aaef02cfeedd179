"""Prints each line that still uses the old API, and fails if there is one."""

import sys
from pathlib import Path

left = [
    f"{path}:{number}: {line.strip()}"
    for path in sorted(Path("src").rglob("*.py"))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    if "get_user" in line
]
print("\n".join(left) or "nothing is left")
sys.exit(bool(left))
