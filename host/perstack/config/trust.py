"""Trust in definitions: programs that they run and addresses that they send keys to, which a person must agree to.

Instructions, descriptions, models and limits are no items. Equal declarations of two Experts are one item.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal, assert_never

from pydantic import JsonValue, ValidationError

from perstack.config.env import read_env
from perstack.config.keys import KeyStore
from perstack.config.project import ProjectPlace, is_named, owner_of
from perstack.core.base.records import Fact, JsonObject, canonical_json, texts_in
from perstack.core.base.secrets import masked_address, masked_args, masked_line
from perstack.core.base.text import approvable_line
from perstack.core.definitions.experts import Expert, ExpertEvaluator, FunctionEvaluator
from perstack.core.definitions.project import Audit, Project
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import (
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    PluginSkill,
    Skill,
    is_base_skill,
    is_picked,
    with_base,
)
from perstack.errors import StorageError, UsageError
from perstack.next_steps import Trust as AgreeTo
from perstack.ports.environment import Environment, is_address_name
from perstack.support.variables import variables_in
from perstack.system.clock import SYSTEM
from perstack.system.files import read_regular, replace_private_file
from perstack.system.user import user_directory

Kind = Literal[
    "command",
    "endpoint",
    "plugin",
    "evaluator",
    "provider",
    "include",
    "tool",
    "address",
    "anchor",
    "storage",
    "dispatcher",
]

_EXEC = "exec"

_LOCAL_SCHEMES = ("file:", "sqlite:", "memory:")
_LOOPBACK = r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?"
_SOCKET = r"(?:%2F[\w%.~-]*)?(?::\d+)?"  # folder of a Unix socket, or no host, which means a database's default socket
_LOCAL_ADDRESS = (
    rf"(?ai)(?:(?:https?|temporal)://{_LOOPBACK}|postgres(?:ql)?://(?:[\w.~%:-]*@)?"
    rf"(?:{_LOOPBACK}|{_SOCKET})(?:,(?:{_LOOPBACK}|{_SOCKET}))*)"
    r"(?:[/?#][^\s\\]*)?"
)
"""Address on this machine in a form that every library parses alike. Anything unusual does not match, and neither do
other schemes, in which a host can be something else: a bucket can be called `localhost`."""
_HOST_SETTINGS = frozenset(("host", "hostaddr", "service", "servicefile"))
"""Query parameters by which a database connects to another host than its address names."""
_ADDRESS_NAMES = frozenset(  # words in a setting's name that mark its value as a host, even without a scheme
    ("address", "domain", "endpoint", "gateway", "host", "hostname", "proxy", "resource", "server", "uri", "url")
)


class StoredItem(Fact):
    """Item as it is stored, without values that may be secret."""

    kind: Kind
    name: str  # place of its declaration
    digest: str


class Item(StoredItem):
    """Program that runs, or address that receives something."""

    shown: str  # description for a person, in one line; not stored
    is_outside: bool = False
    """True if a person must agree before it is opened: an address outside of this machine, or one with environment
    variables. Not stored."""

    def to_stored(self) -> StoredItem:
        """Return the stored part."""
        return StoredItem(kind=self.kind, name=self.name, digest=self.digest)


def items_to_trust(project: Project) -> tuple[Item, ...]:
    """Return the items of a project, each once, in the order of declaration."""
    return _each_once(_of_project(project))


def addresses(env: Environment) -> tuple[Item, ...]:
    """Return the addresses that only a workspace's `.env` sets."""
    names = (name for name in env.unconfirmed if is_address_name(name))
    return tuple(_item("address", name, [name, env[name]], f"{name}={env[name]}") for name in sorted(names))


def confirming(env: Environment, digests: frozenset[str]) -> Environment:
    """Return the environment with the addresses that a person has agreed to marked as the user's own."""
    agreed = {item.name for item in addresses(env) if item.digest in digests}
    unconfirmed = {name: file for name, file in env.unconfirmed.items() if name not in agreed}
    return env.with_variables(env, unconfirmed)


def digests_of(items: Iterable[StoredItem]) -> frozenset[str]:
    """Return the digests by which items are compared."""
    return frozenset(item.digest for item in items)


def storage_items(project: Project) -> Iterator[Item]:
    """Yield the project's storage if it is outside of this machine, or has variables in it."""
    address, setting = project.storage, project.storage_setting
    if _is_outside(address) or _sets_outside(setting):
        endpoint = setting.get("endpoint")
        suffix = f" at {masked_address(endpoint, _hide)}" if isinstance(endpoint, str) else ""
        shown = f"{masked_address(address, _hide)}{suffix}"
        yield _item("storage", "storage", [address, setting], shown, is_outside=True)


def dispatcher_items(project: Project) -> Iterator[Item]:
    """Yield the dispatcher that the project names, if it is outside of this machine, or has variables in it."""
    address = None if project.workers is None else project.workers.dispatcher
    if address is not None and _is_outside(address):
        shown = masked_address(address, _hide)
        yield _item("dispatcher", "dispatcher of workers", [address], shown, is_outside=True)


def skill_items(expert: Expert) -> Iterator[Item]:
    """Yield what the skills of an Expert run and connect to, and the tools with which its provider reaches others."""
    for skill in with_base(expert.skills):
        yield from skill_item(skill, f"skill {skill.name} of {expert.key}")
    if expert.provider_tools:
        options = expert.provider_tool_options
        limits: JsonValue = None if options is None else options.model_dump(mode="json", by_alias=True)
        shown = f"{', '.join(expert.provider_tools)}, which the provider of the model runs"
        payload: JsonValue = [[*expert.provider_tools], limits]
        yield _item("tool", f"providerTools of {expert.key}", payload, shown, is_outside=True)


def _of_project(project: Project) -> Iterator[Item]:
    for pattern in project.includes:
        yield _item("include", "include", [pattern], pattern)
    yield from storage_items(project)
    yield from dispatcher_items(project)
    yield from anchor_items(project.audit)
    yield from provider_items(project.provider, "perstack.toml")
    for expert in project.experts.values():
        yield from provider_items(expert.provider, expert.key)
        yield from _of_evaluator(expert)
        yield from skill_items(expert)


def anchor_items(audit: Audit | None) -> Iterator[Item]:
    """Yield the anchor: a program that runs, or an address that receives heads, with the key that signs them."""
    if audit is None:
        return
    anchor = audit.anchor
    where = shlex.join(masked_args(anchor, _hide)) if isinstance(anchor, tuple) else anchor or "none"
    key = f" with the key {audit.signing_key}" if audit.signing_key else ""
    anchor_value: JsonValue = [*anchor] if isinstance(anchor, tuple) else anchor
    is_outside = isinstance(anchor, str) and _is_outside(anchor)
    yield _item("anchor", "audit", [anchor_value, audit.signing_key], f"{where}{key}", is_outside=is_outside)


def provider_items(provider: ProviderSetting | None, name: str) -> Iterator[Item]:
    """Yield the provider with the settings that decide its address. A built-in address is not outside."""
    if provider is None:
        return
    # numbers and flags are about replies, not addresses
    setting: JsonObject = {
        key: value for key, value in provider.setting.items() if not isinstance(value, bool | int | float)
    }
    address = setting.get("baseUrl")
    suffix = f" at {masked_address(address, _hide)}" if isinstance(address, str) else ""
    other_keys = ", ".join(key for key in setting if key != "baseUrl")
    shown = f"{provider.provider_name}{suffix}{f' with {other_keys}' if other_keys else ''}"
    is_outside = _sets_outside({key: value for key, value in setting.items() if key != "headers"})
    payload: JsonValue = [provider.provider_name, setting]
    yield _item("provider", f"provider of {name}", payload, shown, is_outside=is_outside)


def _of_evaluator(expert: Expert) -> Iterator[Item]:
    evaluator = None if expert.iterate is None else expert.iterate.evaluator
    name = f"evaluator of {expert.key}"
    match evaluator:
        case None | ExpertEvaluator():
            return
        case FunctionEvaluator():
            needs = ", ".join(evaluator.required_env)
            shown = f"{evaluator.entry} with {needs}" if needs else evaluator.entry
            yield _item("evaluator", name, ["entry", evaluator.entry, *evaluator.required_env], shown)
        case str():
            yield _item("evaluator", name, ["shell", evaluator], masked_line(evaluator, _hide))
        case tuple():
            yield _item("evaluator", name, ["program", *evaluator], shlex.join(masked_args(evaluator, _hide)))
        case _:
            assert_never(evaluator)


def skill_item(skill: Skill, name: str) -> Iterator[Item]:
    """Yield what a skill runs or connects to, if anything."""
    match skill:
        case McpStdioSkill() if is_base_skill(skill):
            if is_picked(_EXEC, skill.pick, skill.omit):
                yield _item("tool", name, [_EXEC], "exec: any command that the model writes")
        case McpStdioSkill():
            payload: JsonObject = skill.model_dump(
                mode="json", include={"command", "package_name", "args", "required_env", "env"}
            )
            package = [skill.package_name] if skill.package_name else []
            variables = ", ".join((*skill.required_env, *skill.env))
            line = shlex.join([skill.command or "npx", *package, *masked_args(skill.args, _hide)])
            yield _item("command", name, payload, f"{line} (gets {variables})" if variables else line)
        case McpSseSkill():
            remote: JsonObject = skill.model_dump(
                mode="json", include={"endpoint", "headers", "oauth", "allow_local_network"}
            )
            identity = None if skill.oauth is None else skill.oauth.identity_file
            provider = None if skill.oauth is None else skill.oauth.identity_endpoint
            receiver = "" if provider is None else f" exchanged at {masked_address(provider, _hide)}"
            gets = (*skill.headers, *([] if identity is None else [f"the token in {identity}{receiver}"]))
            sent = f" (gets {', '.join(gets)})" if gets else ""
            issuer = None if skill.oauth is None else skill.oauth.issuer
            places = filter(None, (skill.endpoint, issuer, provider))
            is_outside = any(map(_is_outside, places)) or bool(variables_in(texts_in(remote)))
            is_outside = is_outside or identity is not None  # any file could be named, and is sent
            shown = masked_address(skill.endpoint, _hide) + sent
            yield _item("endpoint", name, remote, shown, is_outside=is_outside)
        case PluginSkill():
            is_outside = bool(variables_in(texts_in(skill.settings))) or _sets_outside(skill.settings)
            yield _item("plugin", name, [skill.plugin, skill.settings], skill.plugin, is_outside=is_outside)
        case InteractiveSkill():
            return
        case _:
            assert_never(skill)


def _item(kind: Kind, name: str, payload: JsonValue, shown: str, *, is_outside: bool = False) -> Item:
    digest = sha256(canonical_json([kind, payload])).hexdigest()
    return Item(kind=kind, name=name, digest=digest, shown=approvable_line(f"{kind}: {shown}"), is_outside=is_outside)


def _is_outside(address: str) -> bool:
    """Return whether a person must agree to an address: it has a variable, or is not certainly on this machine."""
    if variables_in([address]):
        return True
    if address.startswith(_LOCAL_SCHEMES):
        return False
    if re.fullmatch(_LOCAL_ADDRESS, address) is None:
        return True
    from urllib.parse import parse_qsl, urlsplit  # few definitions have such an address

    return any(
        not _is_local_host(name, host)
        for name, value in parse_qsl(urlsplit(address).query, keep_blank_values=True)
        if name.casefold() in _HOST_SETTINGS
        for host in value.split(",")
    )


def _is_local_host(name: str, value: str) -> bool:
    if "service" in name.casefold():
        return False
    return value.startswith("/") or re.fullmatch(_LOOPBACK, value if ":" not in value else f"[{value}]") is not None


def _sets_outside(settings: JsonObject) -> bool:
    return any(_is_setting_outside(name, value) for name, value in settings.items())


def _is_setting_outside(name: str, value: JsonValue) -> bool:
    match value:
        case dict():
            return _sets_outside(value)
        case list():
            return any(_is_setting_outside(name, item) for item in value)
        case str() if "://" in value:
            return _is_outside(value)
        case str():
            is_host = any(word.casefold() in _ADDRESS_NAMES for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))
            return is_host and bool(value) and re.fullmatch(_LOOPBACK, value, re.IGNORECASE) is None
        case _:
            return False


def _hide(value: str) -> str:
    return "***"


def _each_once(items: Iterable[Item]) -> tuple[Item, ...]:
    by_digest: dict[str, Item] = {}
    for item in items:
        by_digest.setdefault(item.digest, item)
    return tuple(by_digest.values())


# Stored agreements, by folder, kept outside of every workspace.


class TrustRecord(Fact):
    """Agreements for one folder."""

    folder: str
    agreed_at: int  # milliseconds since 1970
    items: tuple[StoredItem, ...] = ()


_MAX_FILE_BYTES = 8 << 20


class TrustStore:
    """Store of agreements: one file for each folder, readable only by the user."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in `folder`."""
        self.folder = folder

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> "TrustStore":
        """Return the store in the user's state directory; no `.env` can change where that is."""
        return cls(user_directory("state", environ) / "trust")

    def path(self, folder: Path) -> Path:
        """Return the file for a folder."""
        return self.folder / f"{sha256(os.fsencode(folder)).hexdigest()}.json"

    def read(self, folder: Path) -> TrustRecord | None:
        """Return a folder's agreements; None without any, or if the file is invalid."""
        try:
            record = TrustRecord.model_validate_json(read_regular(self.path(folder), _MAX_FILE_BYTES))
        except (OSError, ValidationError):
            return None
        return record if record.folder == str(folder) else None

    def digests(self, folder: Path) -> frozenset[str]:
        """Return the digests of all items agreed to for a folder."""
        record = self.read(folder)
        return frozenset() if record is None else digests_of(record.items)

    def write(self, folder: Path, items: Iterable[StoredItem]) -> None:
        """Replace the agreements of a folder. Raises StorageError."""
        trust = TrustRecord(folder=str(folder), agreed_at=SYSTEM.now(), items=tuple(items))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private_file(self.path(folder), trust.to_json())
        except OSError as error:
            raise StorageError(f"what is trusted cannot be kept in {self.folder}: {error.strerror}") from error

    def agree(self, folder: Path, items: Iterable[Item]) -> None:
        """Agree to a definition's items; agreed addresses of `.env` files stay. Raises StorageError."""
        record = self.read(folder)
        address_items = () if record is None else (item for item in record.items if item.kind == "address")
        self.write(folder, (*(item.to_stored() for item in items), *address_items))

    def remove(self, folder: Path) -> bool:
        """Remove the agreements of a folder and return whether there were any. Raises StorageError."""
        try:
            self.path(folder).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{self.path(folder)} cannot be removed: {error.strerror}") from error
        return True


class Agreement:
    """Check that each address outside this machine was agreed to by the user, or given in Python, before use."""

    def __init__(self, project: Project, store: TrustStore | None = None) -> None:
        """Check for `project`, with the user's store by default."""
        self._project = project
        self._path = project.path
        self._store = store
        self._is_whole = project.path is None or is_named(Path(project.path))

    def check(self, items: Iterable[Item]) -> None:
        """Raise UsageError that names each address without agreement. Agreements are read at each call."""
        outside = [item for item in items if item.is_outside]
        if self._is_whole or not outside or self._path is None:
            return
        folder = Path(self._path).parent.resolve()
        agreed = (self._store or TrustStore.of_user()).digests(folder)
        current = digests_of(items_to_trust(self._project))
        suffix = " (recorded, and no more in the file: put it back first)"
        new = [
            f"{item.shown} ({item.name}){'' if item.digest in current else suffix}"
            for item in outside
            if item.digest not in agreed
        ]
        if new:
            raise UsageError(
                f"{self._path} names addresses that nobody has agreed to: {'; '.join(dict.fromkeys(new))}",
                next_steps=(AgreeTo(str(folder)),),
            )


def folder_of(project: Project, otherwise: Path) -> Path:
    """Return the folder that agreements belong to: the definition's, or `otherwise` without a file."""
    return otherwise if project.path is None else Path(project.path).parent.resolve()


def environment_of(
    project: Project, place: ProjectPlace, env_files: Sequence[str] = (), *, confirm: bool = True
) -> Environment:
    """Return the environment with the user's keys and `.env` files, or files that a person named in place of those.

    Addresses that a person has agreed to by `perstack trust` count as their own, unless `confirm` is False. Raises
    UsageError if a file cannot be read.
    """
    owners = () if project.path is None else owner_of(Path(project.path))
    files, keys = env_files or project.env_path, KeyStore.of_user()
    env = read_env(place.folder, files, is_confirmed=bool(env_files), owners=owners, stored=keys)
    if not confirm or not addresses(env):
        return env
    return confirming(env, TrustStore.of_user().digests(folder_of(project, place.folder)))
