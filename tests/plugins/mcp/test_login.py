"""Logging in to servers on the web, here on the loopback: by `perstack login`, and what Runs make of it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import warm
from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import Bed
from terminal import Terminal

from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.errors import SkillError, UsageError
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

SERVER = Path(__file__).parent / "servers" / "guarded.py"


@dataclass(frozen=True)
class Guarded:
    """A server that wants a login."""

    base: str
    path: str

    @property
    def endpoint(self) -> str:
        return self.base + self.path

    def did(self) -> list[str]:
        return self.do("did")

    def do(self, action: str) -> list[str]:
        with urllib.request.urlopen(f"{self.base}/{action}") as answer:
            return json.load(answer)


@contextmanager
def _serving(path: str) -> Iterator[Guarded]:
    with subprocess.Popen([sys.executable, str(SERVER), path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Guarded(f"http://127.0.0.1:{process.stdout.readline().strip()}", path)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with _serving("/mcp") as server:
        yield server


@pytest.fixture
def guarded(server: Guarded) -> Guarded:
    server.do("reset")
    return server


def _skill(server: Guarded, oauth: OAuth | None = None, name: str = "tracker", **fields) -> McpSseSkill:
    fields.setdefault("allow_local_network", True)
    return McpSseSkill(name=name, endpoint=server.endpoint, timeout=30_000, oauth=oauth, **fields)


def _host(bed: Bed, *skills: McpSseSkill, script=None) -> Host:
    provider = ScriptedProvider(script or [tool("whoami"), text("done")])
    return Host(
        project_of(expert("a").model_copy(update={"skills": skills})),
        workspace=bed.workspace,
        env=bed.env,
        overrides=Overrides(provider="scripted"),
        plugins=[provider],
    )


def _get(url: str) -> str:
    """As a browser does: through the redirect, back to where it is sent."""
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


async def _browse(url: str) -> None:
    await asyncio.to_thread(_get, url)


async def _run(host: Host) -> Seen:
    seen = Seen()
    await host.run("a", "q", on_event=seen)
    return seen


def _problem(seen: Seen) -> str:
    (ended,) = seen.of("skillDisconnected")
    return ended.text_for(cli_phrase)


def _files(bed: Bed) -> list[Path]:
    return sorted((Path(bed.env["HOME"]) / ".config" / "perstack" / "logins").glob("*.json"))


def test_a_run_without_a_login_goes_on_and_says_how_to_log_in(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        async with _host(bed, _skill(guarded)) as host:
            return await _run(host)

    seen = wait_for(work())
    assert _problem(seen).endswith(": the server asks for a login; perstack login tracker")
    assert "a person has to log in for skill tracker" in results(seen)[0]
    assert seen.types()[-1] == "finishRun"
    assert guarded.did() == [], "nobody was registered for nothing"
    assert _files(bed) == []


def test_after_a_login_all_later_jobs_use_the_server_until_a_logout(bed: Bed, guarded: Guarded) -> None:
    async def work() -> tuple[Seen, Seen, Seen]:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            first, second = await _run(host), await _run(host)
            assert await host.skills.logout("tracker")
            assert not await host.skills.logout("tracker")
            return first, second, await _run(host)

    first, second, last = wait_for(work())
    assert results(first) == results(second) == ["read"]
    assert guarded.did() == ["register", "authorize read", "exchange"]
    assert "perstack login tracker" in _problem(last)


def test_a_server_with_the_older_transport_is_logged_in_to_as_well(bed: Bed) -> None:
    with _serving("/sse") as old:

        async def work() -> tuple[Seen, Seen]:
            async with _host(bed, _skill(old)) as host:
                before = await _run(host)
                await host.skills.login("tracker", _browse)
                old.do("expire")
                return before, await _run(host)

        before, after = wait_for(work())
    assert _problem(before).endswith(": the server asks for a login; perstack login tracker")
    assert results(after) == ["read"]


def test_tokens_are_in_one_file_that_only_the_user_can_read_and_nowhere_else(
    bed: Bed, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> Seen:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("expire")
            return await _run(host)

    seen = wait_for(work())
    assert results(seen) == ["read"]
    (kept,) = _files(bed)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert "refresh-" in kept.read_text()
    written = [path for path in bed.workspace.rglob("*") if path.is_file()]
    assert written
    shown = [*seen.lines, caplog.text.encode(), *(path.read_bytes() for path in written)]
    for secret in (b"access-", b"refresh-", b"code-"):
        assert not any(secret in each for each in shown)


def test_an_expired_login_is_renewed_once_for_all_jobs(bed: Bed, guarded: Guarded) -> None:
    async def work() -> list[Seen]:
        async with _host(bed, _skill(guarded)) as host, _host(bed, _skill(guarded)) as other:
            await host.skills.login("tracker", _browse)
            (kept,) = _files(bed)
            kept.write_text(json.dumps({**json.loads(kept.read_text()), "expiresAt": time.time() - 1}))
            guarded.do("expire")
            return await asyncio.gather(_run(host), _run(other))

    assert [results(one) for one in wait_for(work())] == [["read"], ["read"]]
    assert guarded.did() == ["register", "authorize read", "exchange", "renew"]


def test_a_token_that_is_refused_early_is_renewed_and_the_request_goes_on(bed: Bed, guarded: Guarded) -> None:
    guarded.do("unsaid")

    async def work() -> Seen:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("expire")
            return await _run(host)

    assert results(wait_for(work())) == ["read"]
    assert guarded.did() == ["register", "authorize read", "exchange", "renew"]


@pytest.mark.parametrize("garbage", ["", "{", '{"endpoint": "ENDPOINT", "tokens": {"access_token": ["access-x"]}}'])
def test_a_file_that_holds_no_login_is_like_none(bed: Bed, guarded: Guarded, garbage: str) -> None:
    async def work() -> tuple[Seen, Seen]:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            _files(bed)[0].write_text(garbage.replace("ENDPOINT", guarded.endpoint))
            seen = await _run(host)
            await host.skills.login("tracker", _browse)
            return seen, await _run(host)

    without, after = wait_for(work())
    assert "; perstack login tracker" in _problem(without)
    assert "access-x" not in _problem(without)
    assert results(after) == ["read"]


def test_calls_do_not_wait_for_one_another(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        script = [turn(tool("together"), tool("together")), text("done")]
        async with _host(bed, _skill(guarded), script=script) as host:
            await host.skills.login("tracker", _browse)
            return await _run(host)

    assert results(wait_for(work())) == ["together", "together"]


def test_calls_do_not_wait_for_one_another_when_their_client_must_log_in_again(bed: Bed, guarded: Guarded) -> None:
    bed.env["SECRET"] = "s3cret-of-known"
    guarded.do("machine")
    turns = iter([tool("whoami"), turn(tool("together"), tool("together")), text("done")])

    def script(request):
        if len(request.messages) > 2:
            guarded.do("expire")
        return next(turns)

    async def work() -> Seen:
        skill = _skill(guarded, OAuth(flow="clientCredentials", client_id="known", client_secret="${SECRET}"))
        async with _host(bed, skill, script=script) as host:
            return await _run(host)

    assert results(wait_for(work())) == ["read", "together", "together"]


def test_a_client_that_is_known_to_the_server_uses_its_secret_which_is_kept_nowhere(bed: Bed, guarded: Guarded) -> None:
    bed.env["SECRET"] = "s3cret-of-known"

    async def work() -> Seen:
        skill = _skill(guarded, OAuth(client_id="known", client_secret="${SECRET}", issuer=guarded.base))
        async with _host(bed, skill) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("expire")
            return await _run(host)

    assert results(wait_for(work())) == ["read"]
    assert guarded.did() == ["authorize read", "exchange", "renew"]
    assert not any("s3cret-of-known" in path.read_text() for path in _files(bed))


def test_a_client_logs_in_as_itself_without_anybody_and_nothing_is_kept(bed: Bed, guarded: Guarded) -> None:
    bed.env["SECRET"] = "s3cret-of-known"
    guarded.do("machine")

    async def work(secret: str) -> Seen:
        skill = _skill(guarded, OAuth(flow="clientCredentials", client_id="known", client_secret=secret))
        async with _host(bed, skill) as host:
            return await _run(host)

    assert results(wait_for(work("${SECRET}"))) == ["read"]
    assert guarded.did() == ["for a secret"]
    assert _files(bed) == []
    refused = _problem(wait_for(work("wrong")))
    assert "invalid_client" in refused
    assert "wrong" not in refused


def _asserting(guarded: Guarded, file: Path, **changed: str | None) -> OAuth:
    fields = {
        "identity_file": str(file),
        "identity_endpoint": f"{guarded.base}/identity",
        "identity_client_id": "at-provider",
        "identity_client_secret": "${THERE}",
        "client_id": "known",
        "client_secret": "${SECRET}",
        "issuer": guarded.base,
    }
    return OAuth(flow="identityAssertion", **fields | changed)


def test_an_identity_provider_vouches_for_a_person_at_each_login(bed: Bed, guarded: Guarded) -> None:
    guarded.do("machine")
    bed.env |= {"SECRET": "s3cret-of-known", "THERE": "s3cret there"}
    file = bed.workspace.parent / "identity"
    file.write_text("token-of-ann\n")
    shown: list[bytes] = []

    async def work(**changed: str | None) -> Seen:
        async with _host(bed, _skill(guarded, _asserting(guarded, file, **changed))) as host:
            seen = await _run(host)
            shown.extend(seen.lines)
            return seen

    assert results(wait_for(work())) == ["read"]
    once = [f"exchange for {guarded.base} and {guarded.endpoint}", "for assertion-of-ann"]
    assert guarded.did() == once
    assert results(wait_for(work())) == ["read"]
    assert guarded.did() == once * 2
    assert _files(bed) == []
    elsewhere = wait_for(work(issuer=f"{guarded.base}/elsewhere"))
    assert f"No authorization server metadata at configured issuer {guarded.base}/elsewhere" in _problem(elsewhere)
    assert guarded.did() == once * 2
    unknown = wait_for(work(identity_client_secret=None))
    assert "the identity provider gave no assertion: invalid_client" in _problem(unknown)
    lost = wait_for(work(identity_endpoint=f"{guarded.base}/nowhere"))
    assert "the identity provider gave no assertion: it answered 405" in _problem(lost)
    refused = wait_for(work(client_secret="wrong"))
    assert "the authorization server gave no token: invalid_grant" in _problem(refused)
    file.write_text("token-of-bob")
    assert "gave no assertion: invalid_grant: what is …?" in _problem(wait_for(work()))
    file.write_text("token-of-ann")
    guarded.do("deny")
    assert "the identity provider's answer has no identity assertion" in _problem(wait_for(work()))
    file.unlink()
    assert f"`identityFile` {file} cannot be read: No such file" in _problem(wait_for(work()))
    for secret in (b"token-of", b"assertion-of", b"s3cret", b"wrong"):
        assert not [line for line in shown if secret in line]


def test_a_login_that_was_revoked_is_forgotten_and_asked_for_again(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("revoke")
            return await _run(host)

    assert "its login has expired; perstack login tracker" in _problem(wait_for(work()))
    assert _files(bed) == []


def test_a_login_that_cannot_be_renewed_just_now_is_kept(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("expire")
            guarded.do("down")
            return await _run(host)

    assert "could not be renewed: the authorization server answered 503; try again later" in _problem(wait_for(work()))
    assert len(_files(bed)) == 1


def test_a_login_that_ends_in_the_middle_of_a_job_is_an_error_of_the_call(bed: Bed, guarded: Guarded) -> None:
    turns = iter([tool("whoami"), tool("whoami"), text("done")])

    def script(request):
        if len(request.messages) > 2:
            guarded.do("revoke")
        return next(turns)

    async def work() -> Seen:
        async with _host(bed, _skill(guarded), script=script) as host:
            await host.skills.login("tracker", _browse)
            return await _run(host)

    first, second = results(wait_for(work()))
    assert first == "read"
    assert second == "whoami: its login has expired; a person has to log in for skill tracker"


def test_rights_that_a_call_lacks_are_asked_for_at_the_next_login(bed: Bed, guarded: Guarded) -> None:
    async def work() -> tuple[Seen, Seen]:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", _browse)
            guarded.do("restrict")
            refused = await _run(host)
            await host.skills.login("tracker", _browse)
            return refused, await _run(host)

    refused, allowed = wait_for(work())
    assert results(refused) == [
        "whoami: the server requires more rights (write); a person has to log in for skill tracker"
    ]
    assert results(allowed) == ["read write"]


def test_the_scopes_of_the_definition_are_asked_for(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        async with _host(bed, _skill(guarded, OAuth(scopes=("read", "write")))) as host:
            await host.skills.login("tracker", _browse)
            return await _run(host)

    assert results(wait_for(work())) == ["read write"]


async def _refusal(host: Host, present=_browse, skill: str = "tracker") -> str:
    async with host:
        with pytest.raises(SkillError) as caught:
            await host.skills.login(skill, present)
    return str(caught.value)


def test_a_refused_login_is_told_in_the_servers_words(bed: Bed, guarded: Guarded) -> None:
    guarded.do("deny")
    message = wait_for(_refusal(_host(bed, _skill(guarded))))
    assert message.endswith("the authorization server refused the login: access_denied: you said no")
    assert _files(bed) == []


def test_an_answer_with_another_state_is_turned_away_and_the_login_goes_on(bed: Bed, guarded: Guarded) -> None:
    turned_away: list[int] = []

    def attack(url: str) -> None:
        back = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for forged in (f"{back}?code=evil&state=guessed", f"{back}?code=evil", back.replace("/callback", "/")):
            with pytest.raises(urllib.error.HTTPError) as caught:
                _get(forged)
            turned_away.append(caught.value.code)
            caught.value.close()
        assert "You may close this window" in _get(url)

    async def browse(url: str) -> None:
        await asyncio.to_thread(attack, url)

    async def work() -> None:
        async with _host(bed, _skill(guarded)) as host:
            await host.skills.login("tracker", browse)

    wait_for(work())
    assert turned_away == [404, 404, 404]
    assert len(_files(bed)) == 1


def test_nobody_is_waited_for_for_ever(bed: Bed, guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack_mcp.login.LOGIN_TIMEOUT_S", 0.1)

    async def ignore(url: str) -> None:
        pass

    assert "there was no login within 0.1 s" in wait_for(_refusal(_host(bed, _skill(guarded)), ignore))


def test_a_clients_secret_is_sent_to_its_own_issuer_only(bed: Bed, guarded: Guarded) -> None:
    bed.env["SECRET"] = "s3cret"
    own = OAuth(flow="clientCredentials", client_id="c", client_secret="${SECRET}", issuer="https://auth.example.com")

    async def work() -> Seen:
        async with _host(bed, _skill(guarded, own)) as host:
            return await _run(host)

    seen = wait_for(work())
    assert f"the server names {guarded.base} instead of the `issuer` https://auth.example.com" in _problem(seen)
    assert not any(b"s3cret" in line for line in seen.lines)
    person = OAuth(client_id="c", client_secret="${SECRET}", issuer="https://auth.example.com")
    assert "nothing was sent there" in wait_for(_refusal(_host(bed, _skill(guarded, person))))
    assert guarded.did() == []


def test_a_variable_that_is_not_set_is_named(bed: Bed, guarded: Guarded) -> None:
    oauth = OAuth(client_id="c", client_secret="${NOT_SET}")
    assert wait_for(_refusal(_host(bed, _skill(guarded, oauth)))).startswith(
        "skill 'tracker' needs NOT_SET for its oauth"
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"headers": {"authorization": "Bearer x"}}, "its `headers` have an Authorization"),
        ({"oauth": OAuth(flow="clientCredentials", client_id="c", client_secret="s")}, "it logs in by itself"),
    ],
)
def test_a_skill_that_needs_no_login_says_so(bed: Bed, guarded: Guarded, fields, why: str) -> None:
    assert why in wait_for(_refusal(_host(bed, _skill(guarded, **fields))))


def test_a_wrong_authorization_of_headers_is_told(bed: Bed, guarded: Guarded) -> None:
    async def work() -> Seen:
        async with _host(bed, _skill(guarded, headers={"Authorization": "Bearer wrong"})) as host:
            return await _run(host)

    assert "it does not accept the `Authorization` in `headers`" in _problem(wait_for(work()))


def test_which_skill_is_meant_must_be_clear(bed: Bed, guarded: Guarded) -> None:
    one, other = _skill(guarded), _skill(guarded, OAuth(client_id="c"))
    experts = [expert(key).model_copy(update={"skills": (skill,)}) for key, skill in (("a", one), ("b", other))]

    async def work(skill: str, expert_key: str | None = None) -> str:
        async with Host(project_of(*experts), workspace=bed.workspace, env=bed.env) as host:
            with pytest.raises(UsageError) as caught:
                await host.skills.logout(skill, expert_key=expert_key)
            return str(caught.value)

    assert wait_for(work("tracker")).endswith("the Experts that have it (a, b); name the Expert")
    assert wait_for(work("trakcer")) == "no Expert has a skill 'trakcer'; skills with a login: tracker"
    assert wait_for(work("tracker", "c")).startswith("Expert 'c' has no skill 'tracker'")


def _project(folder: Path, guarded: Guarded) -> Terminal:
    terminal = Terminal(folder)
    terminal.env["HOME"] = str(folder)
    return terminal.project(
        '[experts.a]\ninstruction = "x"\n[experts.a.skills.tracker]\ntype = "mcpSseSkill"\n'
        f'endpoint = "{guarded.endpoint}"\nallowLocalNetwork = true\n',
        a=[{"tools": [{"name": "whoami", "input": {}}]}, {"text": "ok"}],
    )


def test_ctrl_c_ends_the_wait_for_a_person(tmp_path: Path, guarded: Guarded) -> None:
    terminal = _project(tmp_path, guarded)
    command = ("login", "tracker", "--no-browser")
    with warm.perstack(*command, cwd=tmp_path, env=terminal.env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Log in here:\n"
        assert process.stderr.readline().startswith(f"{guarded.base}/authorize?")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == ""
        assert process.wait(30) == 130


def test_at_the_command_line_a_browser_is_opened_and_the_next_run_is_logged_in(
    tmp_path: Path, guarded: Guarded
) -> None:
    terminal = _project(tmp_path, guarded)
    browser = tmp_path / "browser"
    browser.write_text(f"#!{sys.executable}\nimport sys, urllib.request\nurllib.request.urlopen(sys.argv[1]).read()\n")
    browser.chmod(0o700)
    terminal.env["BROWSER"] = str(browser)
    done = terminal.run("login", "tracker")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"Log in here:\n{guarded.base}/authorize?")
    assert done.err.endswith("logged in: tracker\n")
    ran = terminal.run("run", "a", "q", "--provider", "scripted")
    (result,) = [event for event in ran.events if event["type"] == "finishToolCall"]
    assert result["contents"][0]["text"] == "read"
    assert terminal.run("logout", "tracker").err == "logged out: tracker\n"
    again = terminal.run("login", "nosuch")
    assert (again.code, again.err) == (2, "error: no Expert has a skill 'nosuch'; skills with a login: tracker\n")
