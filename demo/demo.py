"""`make demo`: a Coordinator reads a text, a delegate writes a file, on a model inside this process.

    python demo/demo.py [FILE]

Without FILE the text is the first section of this repository's own pages. Exits with 1 unless the delegate's tool
truly wrote the file, and the file holds a sentence in the text's own words.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from check import problems_of, summary_path
from run import Event, Outcome, run
from texts import Text, texts


def main(arguments: list[str]) -> int:
    text = _chosen(arguments)
    workspace = Path(tempfile.mkdtemp(prefix="perstack-demo-"))
    click.echo(f"The text, {text.title!r} of {text.source}, {len(text.body)} characters:\n\n{_indented(text.body)}\n")
    click.echo("perstack run editor …  (the model takes a minute or two)\n")
    outcome = run(text, workspace, _show)
    problems = problems_of(outcome)
    if problems:
        click.echo(f"\nThe demo failed: {'; '.join(problems)}. Its state is in {outcome.job_folder or workspace}.")
        return 1
    _report(outcome)
    return 0


def _chosen(arguments: list[str]) -> Text:
    if not arguments:
        return texts()[0]
    path = Path(arguments[0])
    return Text(str(path), path.name, path.read_text(encoding="utf-8").strip())


def _report(outcome: Outcome) -> None:
    path = summary_path(outcome)
    given, made = outcome.tokens
    click.echo(f"\nThe result: {outcome.result}")
    click.echo(f"\nThe file {path}, written by the delegate:\n\n{_indented(path.read_text(encoding='utf-8'))}")
    click.echo(f"\nThe job folder: {outcome.job_folder}")
    click.echo(f"See it with: perstack log --workspace {outcome.workspace}")
    click.echo(f"\n{outcome.seconds:.0f} s, {given} tokens read, {made} tokens written. The file was checked.")


def _show(event: Event) -> None:
    """A line for each call, as it is decided."""
    if event["type"] != "finishGeneration":
        return
    for part in event["reply"]:
        if part["type"] == "toolCallPart":
            click.echo(
                f"  {event['expertKey']} calls {part['toolName']} {json.dumps(part['args'], ensure_ascii=False)}",
            )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
