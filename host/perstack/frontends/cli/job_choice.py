"""The options that say which Jobs are meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import click

from perstack.core.job_choice import JobChoice
from perstack.core.labels import parse_labels
from perstack.core.statuses import TYPED_STATUS
from perstack.engine.clock import SYSTEM
from perstack.frontends.cli.spans import read_span


def choice_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--status`, `--expert`, `--since` and `--label`, which the command is given as one `choice: JobChoice`."""

    @wraps(command)
    def gather(
        *, status: tuple[str, ...], expert: tuple[str, ...], since: str | None, label: tuple[str, ...], **others: object
    ) -> None:
        span = read_span(since, "--since")
        choice = JobChoice.of(
            (TYPED_STATUS[one] for one in status),
            expert,
            parse_labels(label),
            None if span is None else SYSTEM.now() - span,
        )
        command(choice=choice, **others)

    return kind_options(
        click.option("--since", metavar="TIME", help="Only those written to in the last 30d, 12h and the like.")(gather)
    )


def kind_options(command: Callable[..., None]) -> Callable[..., None]:
    """Those of them that do not depend on when."""
    for option in (
        click.option(
            "--label", multiple=True, metavar="KEY=VALUE", help="Only Jobs with this label; may be given again."
        ),
        click.option(
            "--expert", multiple=True, metavar="NAME", help="Only Jobs of this Expert; given again, of that too."
        ),
        click.option(
            "--status",
            multiple=True,
            type=click.Choice(list(TYPED_STATUS)),
            help="Only Jobs like this; given again, like that too.",
        ),
    ):
        command = option(command)
    return command
