"""Experts as they are declared: what a Run of one would be offered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from perstack.core.definitions import Expert
from perstack.engine.setup import Setup

if TYPE_CHECKING:
    from perstack.engine.diagnosis import Finding
    from perstack.engine.program_trial import RuntimeState, Tried
    from perstack.engine.provider_states import ProviderState
    from perstack.engine.sent import Sent
    from perstack.engine.tooling import OfferedTools


class Experts:
    """The Experts that may be run now."""

    def __init__(self, setup: Callable[[], Setup]) -> None:
        self._setup = setup

    def all(self) -> Mapping[str, Expert]:
        """By their keys, without those whose definition has errors."""
        return self._setup().project.experts

    def get(self, key: str) -> Expert:
        """Raises UsageError, with those that there are, and DefinitionError for one with errors."""
        return self._setup().expert(key)

    def check_ready(self, key: str) -> None:
        """Raises UsageError or MissingCredential if a Run of the Expert could not begin."""
        self._setup().check_ready(key)

    async def run_program(self, expert_key: str, argv: Sequence[str]) -> Tried:
        """Run a program as a tool of this Expert would, on this process's own input and output.

        Raises UsageError if it cannot be started, or the Expert's runtime cannot be had here.
        """
        from perstack.engine.program_trial import run_program

        setup = self._setup()
        return await run_program(setup, setup.expert(expert_key), argv)

    async def test_command(
        self,
        expert_key: str,
        command: str | tuple[str, ...],
        given: str = "",
        *,
        timeout: int = 600_000,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Why a command that judges what a Job has left in the workspace does not agree; empty if it does.

        It runs where programs of this Expert run, with `given` on stdin and few variables, these among them; exit
        status 0 agrees. `timeout` is in milliseconds. Raises UsageError for an Expert that is not there.
        """
        from perstack.engine.judging_command import why_it_fails

        setup = self._setup()
        setup.expert(expert_key)
        return await why_it_fails(setup, expert_key, command, given, timeout, variables or {})

    async def runtimes(self) -> tuple[RuntimeState, ...]:
        """Each runtime that is installed, and whether it can be used on this machine."""
        from perstack.engine.program_trial import runtimes

        return await runtimes(self._setup())

    async def providers(self) -> tuple[ProviderState, ...]:
        """Each provider that is installed, in the order in which they are tried, and the models that it has."""
        from perstack.engine.provider_states import provider_states

        return await provider_states(self._setup())

    async def diagnosis(self) -> tuple[Finding, ...]:
        """Whether what perstack needs is there on this machine, and what to do about what is not."""
        from perstack.engine.diagnosis import diagnosis

        return await diagnosis(self._setup())

    async def sent(self, expert_key: str, *, as_delegate: bool = False) -> Sent:
        """What its model would be sent before the query; its skills are opened for it, and ended."""
        from perstack.engine.sent import sent_to_model

        setup = self._setup()
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await sent_to_model(setup, expert, as_delegate=as_delegate)

    async def tools(self, expert_key: str) -> OfferedTools:
        """What a Run of this Expert, as a Coordinator, would be offered; its skills are opened for it, and ended."""
        from perstack.engine.tooling import offered_tools

        setup = self._setup()
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await offered_tools(setup, expert)
