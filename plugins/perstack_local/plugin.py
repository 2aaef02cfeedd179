"""The plugin: what `perstack_local` brings to the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.hooks import hookimpl
from perstack.ports.provider import ProviderFactory
from perstack_local.provider import LocalProviderFactory


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `local`."""
    return [LocalProviderFactory()]
