"""Check of what a definition names against what the user of its folder has agreed to; `perstack.trust` makes it.

A Host cannot be made without one, and each thing that acts is checked where it begins to act: what opens a storage, a
dispatcher, a provider or a skill calls it, and so does what drives a Job. A check that is not made allows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from perstack.core.definitions.experts import Expert, Iterate
    from perstack.core.definitions.project import Project
    from perstack.core.definitions.settings import ProviderSetting
    from perstack.core.definitions.skills import AnySkill


class TrustCheck(Protocol):
    """Agreements to one definition, which are read at each call. Every `check_` method raises NotAgreed without one.

    Skills, providers and evaluators are checked where they are used, because recorded definitions have them too.
    """

    path: str | None
    """Path of the definition file; None for a definition made in Python, which is its user's own."""

    def check_definition(self) -> None:
        """Check the whole definition. Nothing may be driven before."""
        ...

    def check_keys(self, project: Project, names: Iterable[str]) -> None:
        """Check some keys of a definition, by the names of their fields."""
        ...

    def check_skill(self, skill: AnySkill) -> None: ...

    def check_provider(self, setting: ProviderSetting) -> None: ...

    def check_evaluator(self, settings: Iterate, expert_key: str) -> None: ...

    def undeclared(self, expert: Expert, of: Project, declared: Project) -> Sequence[str]:
        """Return a phrase, without values, for each effect of an Expert `of` another definition, unless `declared`.

        A definition declares an effect if it has it in the same words.
        """
        ...
