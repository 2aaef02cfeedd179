"""The authorization code flow: a person logs in with a browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull
from pydantic import AnyUrl

from perstack.core.definitions import OAuth
from perstack_mcp.logins import Login, LoginFile
from perstack_mcp.oauth import NothingKept
from perstack_mcp.stored_login import login_of
from perstack_mcp.token_flow import ClientMetadata, TokenFlow


class PersonalLogin(TokenFlow):
    """With PKCE. `ask` is given the address for a person and its state, and returns what came back."""

    def __init__(
        self,
        endpoint: str,
        settings: OAuth,
        redirect_uri: str,
        ask: Callable[[str, str], Awaitable[AuthorizationCodeResult]],
        place: LoginFile,
    ) -> None:
        self.settings = settings
        before = place.read()
        self._wanted = None if before is None else before.wanted
        metadata = ClientMetadata.of(settings, self._wanted, redirect_uris=[redirect_uri], client_name="Perstack")
        is_document = (settings.client_id or "").startswith("https://")
        super().__init__(
            endpoint,
            metadata,
            NothingKept(self._keep),
            self._note,
            self._answer,
            client_metadata_url=settings.client_id if is_document else None,
        )
        self._ask = ask
        self._place = place
        self._url = ""
        self._asked: set[tuple[str, str | None]] = set()
        self.is_done = False
        if settings.client_id is not None and not is_document:
            self._known: OAuthClientInformationFull | None = OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret,
                redirect_uris=[AnyUrl(redirect_uri)],
            )
        else:
            self._known = None

    async def load(self) -> None:
        """The client of the definition, if it names one."""
        self.context.client_info = self._known

    async def _note(self, url: str) -> None:
        asked = url.partition("?")[0], self.context.client_metadata.scope
        if asked in self._asked:
            raise OAuthFlowError("the server does not accept the login that it asked for")
        self._asked.add(asked)
        self._url = url

    async def _answer(self) -> AuthorizationCodeResult:
        return await self._ask(self._url, str(httpx2.URL(self._url).params["state"]))

    async def _keep(self) -> None:
        async with self._place.locked():
            login = Login(endpoint=self.context.server_url, wanted=self._wanted)
            self._place.write(login_of(self, login, self.settings))
        self.is_done = True
