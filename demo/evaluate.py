"""How often the demo does its work: the table in the README.

    python demo/evaluate.py --runs 10

Each run has another text, and counts only if the demo's own check passes it. Exits with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import click
from check import problems_of, summary_path
from run import run
from texts import Text, texts

HEADING = """\
| text | characters | seconds | tokens read | written | file | done |
| --- | --- | --- | --- | --- | --- | --- |"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="how many texts")
    chosen = texts()[: parser.parse_args().runs]
    click.echo(HEADING)
    done = sum(_row(text) for text in chosen)
    click.echo(f"\n{done} of {len(chosen)} runs did the work.")
    return 0 if done == len(chosen) else 1


def _row(text: Text) -> bool:
    outcome = run(text, Path(tempfile.mkdtemp(prefix="perstack-evaluate-")))
    problems = problems_of(outcome)
    given, made = outcome.tokens
    path = summary_path(outcome)
    words = len(path.read_text(encoding="utf-8").split()) if path.is_file() else 0
    verdict = "yes" if not problems else f"no: {'; '.join(problems)}"
    name = f"{text.source}: {text.title}"
    row = [name, len(text.body), f"{outcome.seconds:.0f}", given, made, f"{words} words", verdict]
    click.echo("| " + " | ".join(map(str, row)) + " |")
    click.echo(f"{name}: {outcome.job_folder}", err=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
