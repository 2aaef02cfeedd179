"""What of an Expert's skills no key can be held to alone."""

from __future__ import annotations

from typing import assert_never

from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter
from perstack.core.definitions import (
    BASE_SKILL,
    AgentSkill,
    Expert,
    InteractiveSkill,
    InteractiveTool,
    McpSseSkill,
    McpStdioSkill,
    OAuth,
    PluginSkill,
    is_base_skill,
)


def check_skills(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Report what is wrong between keys of a skill, and between skills."""
    asked: dict[str, KeyPath] = {}
    for skill in expert.skills:
        here = (*at, skill.name)
        match skill:
            case McpStdioSkill():
                _check_command(skill, here, report)
                if skill.tools and is_base_skill(skill):
                    report.error((*here, "tools"), "must be left out: what the base skill's arguments are is known")
            case McpSseSkill():
                _check_endpoint(skill, here, report)
                if skill.oauth is not None:
                    _check_oauth(skill.oauth, skill, (*here, "oauth"), report)
            case InteractiveSkill():
                _check_names(skill, (*here, "tools"), asked, report)
            case PluginSkill() | AgentSkill():
                pass
            case _:
                assert_never(skill)


def _check_command(skill: McpStdioSkill, at: KeyPath, report: Reporter) -> None:
    command = skill.command if "command" in skill.model_fields_set else ""
    if skill.name != BASE_SKILL and not (command or skill.package_name):
        report.error((*at, "command"), "is missing: say which command, or which `packageName`, starts the server")


def _check_endpoint(skill: McpSseSkill, at: KeyPath, report: Reporter) -> None:
    endpoint = skill.endpoint
    if not endpoint or endpoint.startswith("${"):
        return  # reported already; or what the variable says is checked when it is connected to
    words = _endpoint_complaint(endpoint, local=skill.allow_local_network)
    if words is not None:
        report.error((*at, "endpoint"), words)


def _endpoint_complaint(endpoint: str, *, local: bool) -> str | None:
    from urllib.parse import urlsplit

    try:
        address = urlsplit(endpoint)
        host = address.hostname
    except ValueError as error:
        return f"is not an address: {error}"
    if address.scheme not in ("https", "http") or not host:
        return "must be a public HTTPS address such as https://example.com/mcp"
    if local:
        return None
    if address.scheme != "https":
        return "must be a public HTTPS address; for a server of your own, set allowLocalNetwork = true"
    if _is_private(host):
        return f"must be a public address, {host} is a local one; if that is meant, set allowLocalNetwork = true"
    return None


def _is_private(host: str) -> bool:
    from ipaddress import ip_address

    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not ip_address(host).is_global
    except ValueError:
        return False


def _check_oauth(oauth: OAuth, skill: McpSseSkill, at: KeyPath, report: Reporter) -> None:
    if any(name.casefold() == "authorization" for name in skill.headers):
        report.error(at, "cannot be beside an `Authorization` in `headers`: take one of them out")
    has_secret, has_key = oauth.client_secret is not None, oauth.private_key is not None
    is_person = oauth.flow == "authorizationCode"
    if is_person and has_key:
        report.error((*at, "privateKey"), 'needs flow = "clientCredentials"')
    if not is_person and has_secret == has_key:
        report.error(at, "must have either `clientSecret` or `privateKey` for clientCredentials")
    if oauth.client_id is None and (has_secret or not is_person):
        report.error((*at, "clientId"), "is missing: the client's id")


def _check_names(skill: InteractiveSkill, at: KeyPath, asked: dict[str, KeyPath], report: Reporter) -> None:
    """`asked` holds where each name was met before in this Expert."""
    for tool in skill.tools:
        here = (*at, tool.name)
        before = asked.setdefault(tool.name, here)
        if before != here:
            report.error(here, f"this Expert has an interactive tool of that name already, at {report.place(before)}")
        if "pattern" in str(tool.input_schema):
            _warn_of_patterns(tool, (*here, "inputJsonSchema"), report)


def _warn_of_patterns(tool: InteractiveTool, at: KeyPath, report: Reporter) -> None:
    # an engine for patterns is loaded for them alone
    from perstack.core.checking import unchecked

    for problem in unchecked(tool.input_schema):
        report.warn(at, f"{problem}: a tool is offered, and what does not match is let through")
