"""Check skills beyond single keys: relations between keys and between skills, and secrets in texts."""

from __future__ import annotations

from contextlib import suppress
from os.path import normpath, relpath
from pathlib import Path
from typing import assert_never

from pydantic import JsonValue

from perstack.config.project_place import folder_contains
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.skills import (
    BASE_SKILL,
    AgentSkill,
    AnySkill,
    InteractiveSkill,
    InteractiveTool,
    McpSseSkill,
    McpStdioSkill,
    OAuth,
    PluginSkill,
    is_base_skill,
    without_groups,
)
from perstack.toml_reader.source import Reporter

# Agent Skills: declared one by one, or by patterns of folders, relative to the file that declares them.


def resolve_from(folder: Path, name: str) -> Path:
    """Return a path in a definition as seen from the folder of its file."""
    with suppress(RuntimeError):  # an unknown user: there will be no such folder
        return Path(normpath(folder / Path(name).expanduser()))
    return Path(normpath(folder / name))


def check_skills(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Report contradictions between keys of a skill, and between skills."""
    tool_paths: dict[str, KeyPath] = {}
    for skill in expert.skills:
        key_path = (*at, skill.name)
        match skill:
            case McpStdioSkill():
                _check_command(skill, key_path, report)
                if skill.tools and is_base_skill(skill):
                    report.error((*key_path, "tools"), "must be left out: the base skill's arguments are known")
            case McpSseSkill():
                _check_endpoint(skill, key_path, report)
                if skill.oauth is not None:
                    _check_oauth(skill.oauth, skill, (*key_path, "oauth"), report)
            case InteractiveSkill():
                _check_names(skill, (*key_path, "tools"), tool_paths, report)
            case PluginSkill():
                _check_source(skill, key_path, report)
            case AgentSkill():
                pass
            case _:
                assert_never(skill)


def _check_command(skill: McpStdioSkill, at: KeyPath, report: Reporter) -> None:
    command = skill.command if "command" in skill.model_fields_set else ""
    if skill.name != BASE_SKILL and not (command or skill.package_name):
        report.error((*at, "command"), "is missing: say which command, or which `packageName`, starts the server")


def with_named_tools(expert: Expert) -> Expert:
    """Return the Expert with the names of tools in place of groups, in `pick` and `omit` of its base skill."""
    skills = tuple(
        skill.model_copy(update={"pick": without_groups(skill.pick), "omit": without_groups(skill.omit)})
        if not isinstance(skill, AgentSkill) and is_base_skill(skill)
        else skill
        for skill in expert.skills
    )
    return expert.model_copy(update={"skills": skills})


def _check_source(skill: PluginSkill, at: KeyPath, report: Reporter) -> None:
    named = skill.model_fields_set & {"plugin", "file"}
    if not named:
        report.error((*at, "plugin"), "is missing: name a `plugin`, or a `file` with functions of yours")
    elif skill.plugin and skill.file:
        report.error((*at, "file"), "cannot be beside `plugin`: take one of them out")


def with_relative_files(expert: Expert, at: KeyPath, report: Reporter, folder: Path) -> Expert:
    """Return the Expert with each file of functions as seen from the definition's folder, which must contain it."""
    skills: list[AnySkill] = []
    for skill in expert.skills:
        if isinstance(skill, PluginSkill) and skill.file:
            path = resolve_from(report.source.path.parent.absolute(), skill.file)
            if folder_contains(folder, str(path)):
                skill = skill.model_copy(update={"file": Path(relpath(path, folder)).as_posix()})
            else:
                report.error(
                    (*at, "skills", skill.name, "file"),
                    f"must be in {folder}: an agreement to the definition covers the files of its folder",
                )
                skill = skill.model_copy(update={"file": ""})
        skills.append(skill)
    return expert.model_copy(update={"skills": tuple(skills)})


def _check_endpoint(skill: McpSseSkill, at: KeyPath, report: Reporter) -> None:
    endpoint = skill.endpoint
    if not endpoint or endpoint.startswith("${"):
        return  # reported already, or checked when the server is connected, because a variable has the address
    problem = _endpoint_problem(endpoint, local=skill.allow_local_network)
    if problem is not None:
        report.error((*at, "endpoint"), problem)


def _endpoint_problem(endpoint: str, *, local: bool) -> str | None:
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
    from perstack.core.definitions.public_addresses import is_public

    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False


def _check_oauth(oauth: OAuth, skill: McpSseSkill, at: KeyPath, report: Reporter) -> None:
    if any(name.casefold() == "authorization" for name in skill.headers):
        report.error(at, "cannot be beside an `Authorization` in `headers`: take one of them out")
    has_secret, has_key = oauth.client_secret is not None, oauth.private_key is not None
    provider = (oauth.identity_endpoint, oauth.identity_client_id, oauth.identity_client_secret)
    if has_key and oauth.flow != "clientCredentials":
        report.error((*at, "privateKey"), 'needs flow = "clientCredentials"')
    if oauth.flow == "clientCredentials" and has_secret == has_key:
        report.error(at, "must have either `clientSecret` or `privateKey` for clientCredentials")
    if oauth.flow == "identityAssertion":
        if None in (oauth.client_secret, oauth.identity_file, oauth.issuer, *provider[:2]):
            needed = "`clientSecret`, `identityFile`, `identityEndpoint`, `identityClientId` and `issuer`"
            report.error(at, f"must have {needed} for identityAssertion")
    elif any(provider):
        report.error(at, 'has keys of an identity provider, which need flow = "identityAssertion"')
    elif oauth.identity_file is not None:
        report.error((*at, "identityFile"), 'needs flow = "identityAssertion"')
    if oauth.client_id is None and (has_secret or oauth.flow != "authorizationCode"):
        report.error((*at, "clientId"), "is missing: the client's id")


def _check_names(skill: InteractiveSkill, at: KeyPath, tool_paths: dict[str, KeyPath], report: Reporter) -> None:
    for tool in skill.tools:
        key_path = (*at, tool.name)
        first = tool_paths.setdefault(tool.name, key_path)
        if first != key_path:
            report.error(
                key_path, f"this Expert has an interactive tool of that name already, at {report.place(first)}"
            )
        if "pattern" in str(tool.input_schema):
            _warn_of_patterns(tool, (*key_path, "inputJsonSchema"), report)


def _warn_of_patterns(tool: InteractiveTool, at: KeyPath, report: Reporter) -> None:
    # imported here, because it loads an engine for patterns
    from perstack.core.schemas.json_schema import unchecked_parts

    for problem in unchecked_parts(tool.input_schema):
        report.warn(at, f"{problem}: a tool is offered, and what does not match is let through")


# Warnings about secrets in a definition file where a variable should be used.

_UNRECORDED_FIELDS = {"headers", "oauth"}
REMEDY = "write `${VAR}` in its place, and set the variable in the environment or in .env"


def warn_of_secrets(expert: Expert, at: KeyPath, report: Reporter) -> None:
    """Warn of each text that logs replace by a digest, except where they record nothing at all."""
    masked_expert = without_secrets(expert)
    for skill, masked in zip(expert.skills, masked_expert.skills, strict=True):
        if masked != skill:
            texts, masked_texts = (item.model_dump(mode="json", exclude=_UNRECORDED_FIELDS) for item in (skill, masked))
            _warn_of_masked_texts(texts, masked_texts, (*at, "skills", skill.name), report, REMEDY)
    if expert.iterate is not None and masked_expert.iterate is not None and masked_expert.iterate != expert.iterate:
        is_program = isinstance(expert.iterate.evaluator, tuple)
        remedy = f"make it one line for the shell: {REMEDY}" if is_program else REMEDY
        texts, masked_texts = (item.model_dump(mode="json") for item in (expert.iterate, masked_expert.iterate))
        _warn_of_masked_texts(texts, masked_texts, (*at, "iterate"), report, remedy)


def _warn_of_masked_texts(value: JsonValue, masked: JsonValue, at: KeyPath, report: Reporter, remedy: str) -> None:
    match value, masked:
        case dict(), dict():
            for name, item in value.items():
                _warn_of_masked_texts(item, masked[name], (*at, name), report, remedy)
        case list(), list():
            for index, (item, masked_item) in enumerate(zip(value, masked, strict=True)):
                _warn_of_masked_texts(item, masked_item, (*at, index), report, remedy)
        case str(), str() if value != masked:
            report.warn(at, f"holds what looks like a secret, of which logs have the digest: {remedy}")
        case _:
            return
