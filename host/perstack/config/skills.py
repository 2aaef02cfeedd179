"""The skills of one Expert: `[experts.KEY.skills.NAME]`, in its four types."""

from __future__ import annotations

import json

from perstack.config.check import a_kind_of, read_table, suggestion
from perstack.config.schema import OAUTH, SKILLS, TOOL
from perstack.config.source import KeyPath, Reporter, TomlTable, TomlValue
from perstack.config.written_secrets import warn_of_args, warn_of_secret, warn_of_settings
from perstack.core.definitions import BASE_SKILL
from perstack.core.secret_text import masked_address, masked_variables

_FLOWS = ("authorizationCode", "clientCredentials")


def read_skills(raw: TomlTable, at: KeyPath, report: Reporter) -> list[TomlValue]:
    """All skills, in the order of the file, each a table with its `name`."""
    skills: list[TomlValue] = []
    asked: dict[str, KeyPath] = {}
    for name, table in raw.items():
        skill = _read_skill(name, table, (*at, name), report)
        if skill is None:
            continue
        if skill["type"] == "interactiveSkill":
            skill["tools"] = _read_tools(skill.get("tools", {}), (*at, name, "tools"), asked, report)
        skills.append(skill)
    return skills


def _read_skill(name: str, raw: TomlValue, at: KeyPath, report: Reporter) -> TomlTable | None:
    # which other keys there are depends on the type: without a good one, nothing is said of them
    kind = _type_of(raw, at, report)
    fields = None if kind is None else read_table(raw, SKILLS[kind], at, report)
    if kind is None or fields is None:
        return None
    if kind == "mcpStdioSkill":
        _check_command(name, fields, at, report)
    elif kind == "mcpSseSkill":
        _check_endpoint(fields, at, report)
        if "oauth" in fields:
            fields["oauth"] = _read_oauth(fields, (*at, "oauth"), report)
    elif kind == "pluginSkill":
        settings = fields.get("settings")
        if isinstance(settings, dict):
            warn_of_settings(settings, (*at, "settings"), report)
    return {**fields, "type": kind, "name": name}


def _type_of(raw: TomlValue, at: KeyPath, report: Reporter) -> str | None:
    if not isinstance(raw, dict):
        read_table(raw, {}, at, report)
        return None
    kind = raw.get("type")
    known = ", ".join(SKILLS)
    if kind is None:
        report.error((*at, "type"), f"is missing: one of {known}")
    elif not isinstance(kind, str):
        report.error((*at, "type"), f"must be one of {known}, not {a_kind_of(kind)}")
    elif kind not in SKILLS:
        report.error((*at, "type"), f"unknown skill type `{kind}`, known are {known}{suggestion(kind, SKILLS)}")
    else:
        return kind
    return None


def _check_command(name: str, fields: TomlTable, at: KeyPath, report: Reporter) -> None:
    if name != BASE_SKILL and not any(fields.get(key) for key in ("command", "packageName")):
        report.error((*at, "command"), "is missing: say which command, or which `packageName`, starts the server")
    args, env = fields.get("args"), _texts(fields, "env", at, report)
    texts = [arg for arg in args if isinstance(arg, str)] if isinstance(args, list) else []
    warn_of_args(texts, (*at, "args"), report)
    for variable, masked in masked_variables(env).items():
        warn_of_secret(env[variable], masked, (*at, "env", variable), report)


def _texts(fields: TomlTable, key: str, at: KeyPath, report: Reporter) -> dict[str, str]:
    """What is text in a table of texts; all else is reported."""
    table = fields.get(key)
    if not isinstance(table, dict):
        return {}
    for name, value in table.items():
        if not isinstance(value, str):
            report.error((*at, key, name), f'must be text in "quotes", not {a_kind_of(value)}')
    return {name: value for name, value in table.items() if isinstance(value, str)}


def _check_endpoint(fields: TomlTable, at: KeyPath, report: Reporter) -> None:
    _texts(fields, "headers", at, report)
    endpoint = fields.get("endpoint")
    if not isinstance(endpoint, str):
        return
    warn_of_secret(endpoint, masked_address(endpoint), (*at, "endpoint"), report)
    if endpoint.startswith("${"):
        return  # what the variable says is checked when it is connected to
    words = _endpoint_complaint(endpoint, local=fields.get("allowLocalNetwork") is True)
    if words is not None:
        report.error((*at, "endpoint"), words)


def _endpoint_complaint(endpoint: str, *, local: bool) -> str | None:
    from urllib.parse import urlsplit

    try:
        address = urlsplit(endpoint)
        host = address.hostname
    except ValueError as error:
        return f"is no address: {error}"
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


def _read_oauth(skill: TomlTable, at: KeyPath, report: Reporter) -> TomlTable:
    fields = read_table(skill["oauth"], OAUTH, at, report) or {}
    headers = skill.get("headers")
    if isinstance(headers, dict) and any(name.casefold() == "authorization" for name in headers):
        report.error(at, "cannot be beside an `Authorization` in `headers`: take one of them out")
    if fields.get("flow", _FLOWS[0]) not in _FLOWS:
        report.error((*at, "flow"), f"must be one of {', '.join(_FLOWS)}")
    is_person = fields.get("flow") != "clientCredentials"
    if is_person and "privateKey" in fields:
        report.error((*at, "privateKey"), 'needs flow = "clientCredentials"')
    if not is_person and ("clientSecret" in fields) == ("privateKey" in fields):
        report.error(at, "must have either `clientSecret` or `privateKey` for clientCredentials")
    if "clientId" not in fields and not (is_person and "clientSecret" not in fields):
        report.error((*at, "clientId"), f"is missing: {OAUTH['clientId'].meaning.partition(',')[0]}")
    issuer = fields.get("issuer")
    if isinstance(issuer, str) and not issuer.startswith(("https://", "http://")):
        report.error((*at, "issuer"), "must be an address such as https://auth.example.com")
    return fields


def _read_tools(raw: TomlValue, at: KeyPath, asked: dict[str, KeyPath], report: Reporter) -> list[TomlValue]:
    """The tools of one interactive skill; `asked` holds where each name was met before in this Expert."""
    tools: list[TomlValue] = []
    for name, table in raw.items() if isinstance(raw, dict) else ():
        here = (*at, name)
        before = asked.setdefault(name, here)
        if before != here:
            report.error(here, f"this Expert has an interactive tool of that name already, at {report.place(before)}")
        fields = read_table(table, TOOL, here, report)
        schema = fields.get("inputJsonSchema") if fields is not None else None
        if fields is None or not isinstance(schema, str):
            continue
        tools.append({**fields, "name": name, "inputSchema": _read_schema(schema, (*here, "inputJsonSchema"), report)})
    return tools


def _read_schema(text: str, at: KeyPath, report: Reporter) -> TomlTable:
    try:
        schema: TomlValue = json.loads(text)
    except ValueError as error:
        report.error(at, f"is not JSON: {error}")
        return {}
    if not isinstance(schema, dict):
        report.error(at, f"must be the JSON schema of an object, not {a_kind_of(schema)}")
        return {}
    if schema.get("type", "object") != "object":
        report.error(at, f'must be the schema of an object: write "type": "object", not {json.dumps(schema["type"])}')
    return {"type": "object", **schema}
