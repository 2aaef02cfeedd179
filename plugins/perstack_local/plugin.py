"""The plugin: what `perstack_local` brings to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory
from perstack_local.names import INSTALL, MODEL


@dataclass(frozen=True, slots=True)
class LocalProviderFactory:
    """What the plugin registers."""

    name: str = "local"
    priority: int = 1000
    """After every endpoint that has a key."""
    default_model: str | None = MODEL
    how_to_configure: str = (
        f"install the embedded model with `{INSTALL}` and fetch its weights with `python -m perstack_local fetch`"
    )

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether the library is installed and there is a file to load."""
        from perstack_local.runtime import is_installed
        from perstack_local.weights import MODEL_PATH_VARIABLE, is_present, weights_path

        return is_installed() and (bool(env.get(MODEL_PATH_VARIABLE)) or is_present(weights_path(env)))

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        """The embedded one, which costs nothing; none if it is not there."""
        return (OfferedModel(MODEL, None, 0.0, 0.0),) if self.is_configured(env) else ()

    def create(self, config: ProviderConfig) -> Provider:
        """Loads nothing yet.

        Raises MissingCredential if the library is missing, DefinitionError if a setting is wrong, ProviderError if
        there is no file to load.
        """
        from perstack_local.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    """Provider `local`."""
    return [LocalProviderFactory()]
