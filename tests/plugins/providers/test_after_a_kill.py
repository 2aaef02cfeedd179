"""Requests after a kill are those that would have been sent, in all formats: thinking, calls and smaller images."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hosts import crashing, expert, open_storage, project_of, until_it_crashes
from pictures import SHOWING, MediaSkill, picture
from provider_suite import WIRES
from wire import Said, Wire

from perstack.config.project_place import ProjectPlace
from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import ToolSpec
from perstack.errors import UsageError
from perstack.host import Host
from perstack.parts import describe_waiting_work
from perstack.ports.skill import Toolset
from perstack.state_guard.guarded_state import guard_state
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

_WIDE = picture("PNG", (9_000, 20))
_TURNS = (
    Said("I look.", thinking="Hm, yes.", calls=(("c1", "x"),), tool="show"),
    Said(thinking="Once more.", calls=(("c2", "x"), ("c3", "y")), tool="show"),
    Said("Done."),
)


class ReadOnly(MediaSkill):
    """A skill whose calls may be repeated."""

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="show", effect="readOnly"),))


class Stopped:
    """A clock that stands still: some formats have the time among the messages."""

    def now(self) -> int:
        return 1_700_000_000_000


class Scene:
    """A Run of three steps with thinking and large images, at an endpoint that knows the step from the request."""

    def __init__(self, folder: Path, wire: Wire) -> None:
        self.folder, self.wire = folder, wire
        self.sent: list[str] = []  # the messages of each request

    def drive(self, job_id: str, point: CrashPoint | None = None) -> None:
        """Run the Job until it ends, in a second process if the first is killed at a point."""
        asyncio.run(self._drive(job_id, point))

    async def _drive(self, job_id: str, point: CrashPoint | None) -> None:
        async with asyncio.timeout(60), FakeEndpoint(choose=self._choose) as endpoint:
            if point is None:
                async with self._host(endpoint.url) as host:
                    assert (await host.run("a", "look", job_id=job_id)).text == "Done."
                return
            with until_it_crashes():
                async with self._host(endpoint.url, point) as host:
                    await host.run("a", "look", job_id=job_id)
            async with self._host(endpoint.url) as host:
                try:
                    status = (await host.job(job_id)).status
                except UsageError:
                    return  # nothing was begun
                if status != "completed":
                    assert (await host.resume(job_id)).text == "Done."
                assert (await host.audit.replay(job_id)).findings == ()
                assert (await host.audit.verify(job_id)).findings == ()

    def _choose(self, request: ReceivedRequest) -> PreparedReply:
        body = json.loads(request.body)
        messages = next(body[name] for name in ("messages", "input", "contents") if name in body)
        self.sent.append(json.dumps(messages))
        return self.wire.reply(_TURNS[min(2, len(self.wire.results(body)))])

    def _host(self, url: str, point: CrashPoint | None = None) -> Host:
        config = self.wire.config(url)
        setting = ProviderSetting(provider_name=self.wire.factory.name, setting=config.setting)
        one = expert("a").model_copy(update={"skills": (SHOWING,)})
        storage: Any = "file:perstack"
        if point is not None:
            place = ProjectPlace(self.folder, None)
            storage = crashing(point)(guard_state(open_storage(storage, self.folder), place, describe_waiting_work))
        return Host(
            project_of(one).model_copy(update={"model": self.wire.model, "provider": setting}),
            workspace=self.folder,
            storage=storage,
            env=config.env,
            overrides=Overrides(open=True),
            plugins=[ReadOnly([("image/png", _WIDE)])],
            clock=Stopped(),
        )


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_what_is_sent_after_a_kill_is_what_would_have_been_sent(tmp_path: Path, wire: Wire) -> None:
    scene = Scene(tmp_path, wire)
    scene.drive("whole")
    expected = set(scene.sent)
    assert len(expected) == 3
    for number, point in enumerate(CrashPoint("after", append) for append in (3, 5, 6)):
        scene.sent.clear()
        scene.drive(f"j{number}", point)
        assert set(scene.sent) <= expected, f"{point}: another request"
