"""Split shell scripts into simple commands, redirections, and parts that cannot be parsed with certainty.

A person is asked about a script that `parse_script` does not understand. Rules that deny are still matched with its
words and with the files after `<` and `>`: such guesses can only make a decision stricter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace

from perstack.core.permissions.shell_grammar import NotUnderstood, parse_script, redirect_parts
from perstack.core.permissions.shell_syntax import Part, Redirect, ShellCommand, Unparsed

_MAX_SCRIPT_CHARS = 50_000
_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LINE_CONTINUATION = re.compile(r"(?<![\s\\])\\\n")
_FOLDER_COMMANDS = frozenset({"cd", "pushd", "popd"})
_HEREDOC = re.compile(r"(<<-?[ \t]*(['\"\\]?)(\w+)[^\n]*\n)((?:(?!\t*\3\n)[^\n]*\n)*)")
_TOKEN = re.compile(
    r"(?P<redirect>>>|>\||>&|<>|>|(?<!<)<(?![<(]))"
    r"|(?P<word>(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^\s;&|<>'\"\\`()])+)"
    r"|(?P<end>[\n;&|)`]+|(?<!\[)(?<!\[\$)\()",
    re.DOTALL,
)
_COMMAND_IN_TEXT = re.compile(r"\"[^\"]*?(?:\$\(|(?<=[\"\s])`)(.*)", re.DOTALL)
_BEFORE_COMMAND = re.compile(r"!|\{|then|do|else|elif|if|while|until|time|coproc|\w+=.*", re.DOTALL)
_QUOTES = re.compile(r"['\"\\]")
_EXPANSIONS = re.compile(r"[$*?\[{~`]")


def parts_of_script(script: str, *, is_bash: bool = False) -> list[Part]:
    """Return the parts of a script. A path relative to a folder that the script changes to counts as unknown."""
    problem = _unreadable_reason(script)
    if problem is not None:
        return [Unparsed(_shorten(script), problem)]
    if _LINE_CONTINUATION.search(script):
        # `_unreadable_reason` has refused quotes and other backslashes, so this removes no literal text
        script = script.replace("\\\n", "")
    try:
        parts = parse_script(script, is_bash=is_bash)
    except NotUnderstood as error:
        parts = [*_guess_parts(script), Unparsed(_shorten(script), str(error))]
    if not any(isinstance(part, ShellCommand) and _FOLDER_COMMANDS.intersection(part.known[:2]) for part in parts):
        return parts
    return [with_unknown_folder(part) for part in parts]


def _guess_parts(script: str) -> Iterator[Part]:
    """Yield the commands and redirections that an unreadable script seems to have, by its words and separators.

    Quoted text and here-documents count as data, unless a command is substituted in them.
    """
    commands: list[list[str]] = [[]]
    mark = previous = ""
    for token in _TOKEN.finditer(_HEREDOC.sub(_without_data, f"{script}\n")):
        word = token["word"]
        if word is None:
            mark = token["redirect"] or ""
            commands += [[]] if token["end"] else []
            continue
        inner = _COMMAND_IN_TEXT.search(word)
        if inner is not None:
            yield from _guess_parts(inner[1])
        if mark:
            yield from _guess_redirects(mark, word)
        else:
            commands += [[]] if _BEFORE_COMMAND.fullmatch(previous) else []
            commands[-1].append(_QUOTES.sub("", word))
        mark, previous = "", word
    yield from (ShellCommand(tuple(words), is_wrapper=True) for words in commands if words)


def _without_data(heredoc: re.Match[str]) -> str:
    """Return a here-document with only its command substitutions, as one quoted word."""
    is_quoted, body = heredoc[2], heredoc[4]
    return heredoc[1] + (
        "" if is_quoted or "$(" not in body else f'"{body[body.index("$(") :].replace(chr(34), "")}"\n'
    )


def _guess_redirects(mark: str, word: str) -> Iterator[Part]:
    path = _QUOTES.sub("", word)
    if path and _EXPANSIONS.search(path) is None:
        parts = redirect_parts(mark, path, word)
        yield from (replace(part, is_guess=True) for part in parts if isinstance(part, Redirect))


def _unreadable_reason(script: str) -> str | None:
    if len(script) > _MAX_SCRIPT_CHARS:
        return "the script is too long to be read"
    if _CONTROL_CHARS.search(script):
        return "the script has characters that cannot be seen"
    if not script.isascii() and any(_is_invisible_or_space(char) for char in script):
        return "the script has characters that look like spaces, or like none"
    if _LINE_CONTINUATION.search(script) and any(mark in script for mark in ("'", '"', "<<", "#", "\\\\\n")):
        return "a word of the script continues in the next line"
    return None


def _is_invisible_or_space(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cf", "Cc", "Cs", "Co")


def with_unknown_folder(part: Part) -> Part:
    """Return the part with relative paths unknown, because its script may run in any folder."""
    if isinstance(part, ShellCommand):
        return replace(part, has_unknown_folder=True)
    if isinstance(part, Redirect) and part.path is not None and not part.path.startswith("/"):
        return replace(part, path=None, text=part.path)
    return part


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
