"""Errors of a command line in the form of all errors: place, problem, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import click

from perstack.core.base.text import nearest

_KINDS = {"integer range": "whole number", "integer": "whole number", "float range": "number", "float": "number"}

_RANGES = (
    (r"is not in the range x>=(\S+)$", r"must be at least \1"),
    (r"is not in the range x>(\S+)$", r"must be more than \1"),
)


_REGISTRY_COMMANDS: Mapping[str, Collection[str]] = {
    "perstack": ("publish", "unpublish", "tag", "status", "application"),
    "perstack expert": (
        *("create", "delete", "push", "refs", "version", "versions"),
        *("publish", "unpublish", "yank"),
    ),
}
"""Commands of the original that use its registry, by their command group."""

_INSTEAD_OF_REGISTRY = "share perstack.toml itself, and use the Experts of others with `include`: docs/from-perstack.md"


def usage_error(error: click.ClickException, words: Sequence[str] = ()) -> str:
    """Return the error as one line. The place is the command; `words` are the words after `perstack`."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = " ".join(("perstack", *words[:1])) if context is None else context.command_path
    message, remedy = _message_and_hint(error, context, command)
    return f"error: {command}: {message}; {remedy}"


def _message_and_hint(error: click.ClickException, context: click.Context | None, command: str) -> tuple[str, str]:
    remedy = f"`{command} --help` says more"
    match error:
        case click.NoSuchOption():
            return f"there is no option {error.option_name}", _suggest(error.option_name, _flags(context), command)
        case click.MissingParameter() if error.param is not None:
            return f"{error.param.make_metavar(_require_context(context)).strip('[]')} is missing", _usage_form(
                context, remedy
            )
        case click.BadOptionUsage():
            is_flag = "does not take" in error.message
            return f"{error.option_name} {'takes no' if is_flag else 'needs a'} value", remedy
        case click.BadParameter() if error.param is not None:
            name = error.param.opts[0] if isinstance(error.param, click.Option) else error.param.human_readable_name
            return f"{name}: {_plain_message(error.message)}", remedy
        case _:
            return _message_of_other(error.format_message(), context, command, remedy)


def _message_of_other(message: str, context: click.Context | None, command: str, remedy: str) -> tuple[str, str]:
    match = re.match(r"No such command '(.*?)'\.", message)
    if match is not None and context is not None and isinstance(context.command, click.Group):
        name = match[1]
        if name in _REGISTRY_COMMANDS.get(context.command_path, ()):
            return f"there is no registry here, so there is no command {name}", _INSTEAD_OF_REGISTRY
        return f"there is no command {name}", _suggest(name, context.command.list_commands(context), command)
    extra_match = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", message, re.DOTALL)
    if extra_match is not None:
        return f"unexpected arguments: {extra_match[1]}", _quoted_command(context, _usage_form(context, remedy))
    return _plain_message(message), remedy


def _suggest(name: str, names: list[str], command: str) -> str:
    suggestion = nearest(name, names)
    return f"`{command} --help` lists them" if suggestion is None else f"did you mean {suggestion}?"


def _flags(context: click.Context | None) -> list[str]:
    if context is None:
        return []
    parameters = context.command.get_params(context)
    return [name for param in parameters if isinstance(param, click.Option) and not param.hidden for name in param.opts]


def _usage_form(context: click.Context | None, otherwise: str) -> str:
    if context is None:
        return otherwise
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"write it as: {context.command_path} {pieces}"


def _quoted_command(context: click.Context | None, otherwise: str) -> str:
    *leading, last = ("",) if context is None else (*context.command.collect_usage_pieces(context),)
    text = last.strip("[]")
    if context is None or text not in ("QUERY", "TEXT"):
        return otherwise
    return f'put {text} in quotes: {" ".join((context.command_path, *leading[1:]))} "{text}"'


def _require_context(context: click.Context | None) -> click.Context:
    return context or click.Context(click.Command("perstack"))


def _plain_message(message: str) -> str:
    text = message.removesuffix(".")
    for kind, plain in _KINDS.items():
        text = text.replace(f"is not a valid {kind}", f"is not a {plain}")
    for pattern, plain in _RANGES:
        text = re.sub(pattern, plain, text)
    return text[:1].lower() + text[1:]
