"""Getting tokens: from the authorization server that is configured, and with errors that hold nothing secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import issuers_match, union_scopes
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata
from pydantic import BaseModel, PrivateAttr

from perstack.core.definitions import OAuth
from perstack.errors import SkillError
from perstack_mcp.oauth import Flow, bounded, is_step_up
from perstack_mcp.sdk import OAuthFlow


class ClientMetadata(OAuthClientMetadata):
    """What the client says of itself; the scopes of its definition go before those that a server suggests."""

    _scopes: Sequence[str] = PrivateAttr(())
    _besides: str | None = PrivateAttr(None)

    @classmethod
    def of(cls, settings: OAuth, besides: str | None = None, **fields: object) -> ClientMetadata:
        """`besides` are scopes to ask for in any case."""
        metadata = cls.model_validate(fields)
        metadata._scopes, metadata._besides = settings.scopes, besides
        return metadata

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope":
            suggested = value if isinstance(value, str) else None
            value = union_scopes(" ".join(self._scopes) or suggested, self._besides)
        super().__setattr__(name, value)


class TokenFlow(OAuthFlow):
    """The SDK's flow, for any grant. Raises SkillError."""

    settings: OAuth

    async def flow(self, request: httpx2.Request) -> Flow:
        """As the SDK's, but that the request itself is not sent while the SDK holds its lock."""
        # the SDK holds its lock while a request is under way: that is for getting tokens only
        if self.context.is_token_valid():
            self.sign(request)
            response = yield request
            if response.status_code != 401 and not is_step_up(response):
                return
        flow = super().flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield bounded(outgoing)))
        except StopAsyncIteration:
            return
        except OAuthFlowError as error:
            raise SkillError(_words(error)) from None
        except ValueError:
            raise SkillError(_MALFORMED) from None
        finally:
            await flow.aclose()

    def choose_server(self, advertised: list[str]) -> str:
        """The one that the definition names, or the first."""
        issuer = self.settings.issuer
        return next((one for one in advertised if issuer and issuers_match(one, issuer)), advertised[0])

    def issuer_to_expect(self) -> str:
        """That of the definition, if it names one. Raises OAuthFlowError if the server leads elsewhere."""
        found, issuer = super().issuer_to_expect(), self.settings.issuer
        if issuer is not None and not issuers_match(found, issuer):
            raise OAuthFlowError(
                f"the server leads to {found} and not to the `issuer` {issuer}: nothing was sent there"
            )
        return found

    async def take_token(self, response: httpx2.Response) -> None:
        """Raises OAuthFlowError, with the server's reason, if it gives none."""
        if response.status_code not in (200, 201):
            raise OAuthFlowError(f"the authorization server gave no token: {await _refusal(response)}")
        await super().take_token(response)

    async def authorization(self) -> httpx2.Request:
        """With the client's secret where the server wants it."""
        client = self.context.client_info
        if client is not None and client.client_secret and client.client_id == self.settings.client_id:
            client.token_endpoint_auth_method = _secret_method(self.context.oauth_metadata)
        return await super().authorization()


def _secret_method(server: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """RFC 8414, section 2: basic, unless the server takes only the other."""
    known = None if server is None else server.token_endpoint_auth_methods_supported
    return "client_secret_basic" if not known or "client_secret_basic" in known else "client_secret_post"


_MALFORMED = "the authorization server's answer is not as it should be"


def _words(error: OAuthFlowError) -> str:
    """Not those of a malformed answer, which show it: it may hold a token, or a secret."""
    if isinstance(error, OAuthTokenError) or error.__cause__ is not None:
        return _MALFORMED
    words = " ".join(str(error).split())[:500]
    if isinstance(error, OAuthRegistrationError):
        return f"the server did not register perstack as a client ({words}): it may want `clientId` in `oauth`"
    return words


async def _refusal(response: httpx2.Response) -> str:
    """RFC 6749, section 5.2."""
    try:
        answer = _Refusal.model_validate_json(await response.aread())
    except ValueError:
        return f"it answered {response.status_code}"
    return ": ".join(part for part in (answer.error, answer.error_description) if part)


class _Refusal(BaseModel):
    error: str
    error_description: str = ""
