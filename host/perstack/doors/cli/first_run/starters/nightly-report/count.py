"""Counts the lines of a log by level: `python3 -I count.py FILE`."""

import sys
from collections import Counter
from pathlib import Path

levels = Counter(line.split()[1] for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if line)
for level, count in levels.most_common():
    print(f"{count} {level}")
