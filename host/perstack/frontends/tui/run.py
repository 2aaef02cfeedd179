"""The program from its beginning to its end, with the terminal left as it was."""

from __future__ import annotations

import asyncio

from perstack.config.load import LoadedProject
from perstack.engine.live import LiveProject
from perstack.frontends.shared.stopping import INTERRUPTED, leave, on_stop_signals
from perstack.frontends.tui.app import StartApp
from perstack.frontends.tui.guard import terminal_restored
from perstack.host import Host

_TYPED = 50
"""Queries of earlier Jobs that Up brings back."""


def run_start(
    host: Host,
    loaded: LoadedProject,
    *,
    expert: str | None = None,
    query: str | None = None,
    job: str | None = None,
    mouse: bool = True,
    given: str = "",
    names_workspace: bool = False,
    drives: bool = False,
) -> int:
    """Run it until a person leaves; returns the exit status. SIGTERM and SIGHUP interrupt what is at work first."""

    async def main() -> int:
        async with host:
            job_id = await host.jobs.find(job)
            typed = [one.query for one in reversed((await host.jobs.list(limit=_TYPED)).jobs) if one.query]
            app = StartApp(
                host,
                LiveProject(loaded),
                expert=expert,
                query=query,
                job_id=job_id,
                typed=typed,
                given=given,
                names_workspace=names_workspace,
                drives=drives,
            )
            leaving: list[asyncio.Task[None]] = []
            with on_stop_signals(lambda: leaving.append(asyncio.ensure_future(app.leave(INTERRUPTED)))):
                code = await app.run_async(mouse=mouse)
                if app.leaves_at_once:
                    leave()
            for session in app.sessions:
                session.interrupt()
            await asyncio.gather(*(session.ended() for session in app.sessions))
            return app.return_code or code or 0

    with terminal_restored():
        return asyncio.run(main())
