"""The declared Experts: look them up, and check and preview what a Run of one would use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perstack.core.definitions.experts import Expert
from perstack.engine.context.host_context import ContextSource

if TYPE_CHECKING:
    from perstack.engine.diagnostics.doctor import Finding, ProgramExit, ProviderState, RuntimeState
    from perstack.engine.diagnostics.prompt_preview import OfferedTools, PromptPreview


class Experts:
    """The Experts of the definition in force."""

    def __init__(self, source: ContextSource) -> None:
        """Create; `source` has the context in force."""
        self._source = source

    def all(self) -> Mapping[str, Expert]:
        """Return the Experts by key, without those whose definition has errors."""
        return self._source.current.project.experts

    def get(self, key: str) -> Expert:
        """Return an Expert. Raises UsageError, listing the known Experts, and DefinitionError for one with errors."""
        return self._source.current.expert(key)

    def check_ready(self, key: str) -> None:
        """Raise UsageError or MissingCredential if a Run of the Expert could not begin."""
        self._source.current.check_ready(key)

    async def run_program(self, expert_key: str, argv: Sequence[str]) -> ProgramExit:
        """Run a program as a tool of this Expert would, with this process's stdin, stdout and stderr.

        Raises UsageError if it cannot be started, or if the Expert's runtime is not available here.
        """
        from perstack.engine.diagnostics.doctor import run_program

        setup = self._source.current
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
        """Run a command that tests what a Job has left in the workspace. Return why it fails; empty if it passes.

        It runs like programs of this Expert, with `given` on stdin and a reduced environment plus `variables`. Exit
        status 0 passes. `timeout` is in milliseconds. Raises UsageError for an unknown Expert.
        """
        from perstack.engine.context.commands import why_it_fails

        setup = self._source.current
        setup.expert(expert_key)
        return await why_it_fails(setup, expert_key, command, given, timeout, variables or {})

    async def runtimes(self) -> tuple[RuntimeState, ...]:
        """Return the installed runtimes, and whether each can be used on this machine."""
        from perstack.engine.diagnostics.doctor import runtimes

        return await runtimes(self._source.current)

    async def providers(self) -> tuple[ProviderState, ...]:
        """Return the installed providers with their models, in the order in which they are tried."""
        from perstack.engine.diagnostics.doctor import provider_states

        return await provider_states(self._source.current)

    async def diagnosis(self) -> tuple[Finding, ...]:
        """Check whether this machine has what perstack needs; findings include remedies."""
        from perstack.engine.diagnostics.doctor import diagnosis

        return await diagnosis(self._source.current)

    async def sent(self, expert_key: str, *, as_delegate: bool = False) -> PromptPreview:
        """Return what the Expert's model would be sent before the query. Its skills are opened and closed."""
        from perstack.engine.diagnostics.prompt_preview import sent_to_model

        setup = self._source.current
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await sent_to_model(setup, expert, as_delegate=as_delegate)

    async def tools(self, expert_key: str) -> OfferedTools:
        """Return the tools that a Coordinator's Run of this Expert would offer. Its skills are opened and closed."""
        from perstack.engine.diagnostics.prompt_preview import list_offered_tools

        setup = self._source.current
        expert = setup.expert(expert_key)
        await setup.check_sandbox(expert)
        return await list_offered_tools(setup, expert)
