"""Many Jobs at once, with faults: a short time of what `make soak` does for ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "support" / "soak.py"


@pytest.mark.timeout(300)
def test_many_jobs_with_faults_leave_nothing_open(tmp_path: Path) -> None:
    # caches still fill in so short a time; that memory stays as it is, is for minutes to show
    done = subprocess.run(
        [sys.executable, str(SOAK), "--seconds", "8", "--jobs", "24", "--most-growth", "20"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
