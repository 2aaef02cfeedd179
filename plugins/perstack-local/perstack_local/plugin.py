"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import OfferedModel, Provider, ProviderConfig, ProviderFactory
from perstack_local import INSTALL, MODEL

PLUGIN_API = 1


@dataclass(frozen=True, slots=True)
class LocalProviderFactory(ProviderFactory):
    """Factory of provider `local`."""

    name: str = "local"
    priority: int = 1000  # preference after every endpoint with a key
    default_model: str | None = MODEL
    needs_name: bool = True  # a small model is not a replacement for a model whose key is missing
    has_one_model: bool = True
    how_to_configure: str = (
        f"install the embedded model with `{INSTALL}` and download its weights with `python -m perstack_local fetch`"
    )

    @override
    def is_configured(self, env: Mapping[str, str]) -> bool:
        from perstack_local.llama import is_installed
        from perstack_local.weights import MODEL_PATH_VARIABLE, is_present, weights_path

        return is_installed() and (bool(env.get(MODEL_PATH_VARIABLE)) or is_present(weights_path(env)))

    @override
    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        return (OfferedModel(MODEL, None, 0.0, 0.0),) if self.is_configured(env) else ()

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without loading the model.

        Raises MissingCredential without the library, DefinitionError for a setting, ProviderError without a model file.
        """
        from perstack_local.provider import create

        return create(config)


@hookimpl
def perstack_providers() -> Sequence[ProviderFactory]:
    return [LocalProviderFactory()]
