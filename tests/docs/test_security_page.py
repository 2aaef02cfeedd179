"""Every attack in docs/security.md is a test, and there are as many cases as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| .+ \| ([\d,]+) \| `(tests/[^`]+)` \|$", re.MULTILINE)


def test_there_are_at_least_as_many_cases_of_each_attack_as_the_page_says() -> None:
    rows = [(int(count.replace(",", "")), files.split()) for count, files in ROW.findall(PAGE)]
    assert len(rows) == PAGE.partition("## Tests")[2].count("\n| ") - 2, "each row has its count and its files"
    found = cases([file for _, files in rows for file in files])
    for count, files in rows:
        assert count <= sum(found[file] for file in files), files


def cases(files: list[str]) -> Counter[str]:
    """How many cases pytest finds in each of these files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    env = {
        name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"
    }  # they may change what it says
    env["PERSTACK_STORAGES"] = "all"  # `make test` runs a sample of the cases on other storages than folders
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return Counter(line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line)


PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
