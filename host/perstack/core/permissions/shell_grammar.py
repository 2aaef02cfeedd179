"""Parser for the subset of the shell language that all shells read alike; anything else raises NotUnderstood.

Scripts are run by dash, ash, ksh and bash of several versions, and one of them may run what another takes for text. So
a grammar of bash alone, such as tree-sitter's, is not enough. A rule may allow a script only if this parser understands
all of it: every construct is listed here, with the characters that it may contain. Before accepting one more, be sure
of its meaning in every shell (in bash alone: `is_bash`), and let tests/support/shell_scripts.py generate it, so that
`make fuzz` runs it in each shell.

There is no tokenizer, because the meaning of a character depends on its position: each method reads one construct at
`_position`. Reserved words count only where a command begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from perstack.core.permissions.shell_syntax import (
    Part,
    Redirect,
    ShellCommand,
    Unparsed,
    is_harmless,
    is_plain,
    split_names,
)
from perstack.dataclass import dataclass

UNREAD = "this part of the script cannot be read"
SETS_VARIABLE = "it sets a variable that can change which program runs"


_MAX_DEPTH = 30
_RESERVED_WORDS = split_names(
    """
    ! { } if then elif else fi do done case esac for while until in function select [[ ]] coproc time
    namespace repeat foreach end
    """
)
_WORD_ENDS = " \t\n;&|<>()"
_BARE_TEXT = re.compile(r"[^ \t\n;&|<>()'\"\\$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = r"[A-Za-z0-9_./,:@%+ -]*"
_BLANK_BYTES = frozenset({0x85, 0xA0})  # bytes that some locales treat as blanks, even within a UTF-8 character

_SIMPLE_EXPANSION = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_NUMBER_PARAMETERS = frozenset({"$?", "$#", "$$", "$!"})
_EXPANSION = re.compile(
    r"\$\{(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+)"
    rf"(?::?[-+?]{_TEXT}|(?:%%?|##?)[A-Za-z0-9_./,:@*?+-]*)?\}}|\$\{{#[A-Za-z_][A-Za-z0-9_]*\}}|\$\{{[@*#?]\}}"
)
_EXPANSION_OF_BASH = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?:\^\^?|,,?|//?[A-Za-z0-9_.,:@*?-]+/[A-Za-z0-9_.,:@-]*)\}")
_ARITHMETIC = re.compile(r"\$\(\([ 0-9+*%-]*\)\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_SUBSCRIPT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+=)")
_WITH_BRACES = re.compile(r"[A-Za-z0-9_./,{}:@%+-]+")
_WITH_BRACKETS = re.compile(r"[A-Za-z0-9_./*?!:@%+\[\]-]+")
_PATTERN = re.compile(
    r"(?:[A-Za-z0-9_.,/:=+@%*?-]|\[[!A-Za-z0-9-]+\]|'[A-Za-z0-9_ .,/:=+@%-]*'|\"[A-Za-z0-9_ .,/:=+@%-]*\")+"
)
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\(\)[ \t\n]+(?=[{(])")
_REDIRECT = re.compile(r"([0-9]?)(<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)|()(&>)(?!>)")
_HEREDOC = re.compile(r"('?|\"?)([A-Za-z_][A-Za-z0-9_]*)\1(?=[ \t\n;&|<>)])")
_HEREDOC_BODY = re.compile(r"(?:[^\\`$]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*")
_NESTED_HEREDOC_BODY = re.compile(r"[^\\`$'\"()#]*")

_FILE_TEST = re.compile(r"-[abcdefghknprsuwxzLOGSN]")
_NUMERIC_TEST = re.compile(r"-(?:eq|ne|gt|ge|lt|le)")
_TEXT_TEST = re.compile(r"==?|!=|-nt|-ot|-ef")
_PRINTF_FORMAT = re.compile(r"(?:[^%]|%(?:%|-?[0-9]*(?:\.[0-9]+)?[sb]))*", re.DOTALL)
_SET_ARGUMENT = re.compile(
    r"[-+][efuxvnC]+|[-+][efuxvnC]*o|--|errexit|nounset|noglob|xtrace|verbose|noclobber|pipefail"
)


_DECLARING_BUILTINS = frozenset({"export", "readonly", "local"})
_NUMERIC_BUILTINS = frozenset({"exit", "return", "shift", "break", "continue", "ulimit", "umask"})
"""Builtins whose arguments some shells evaluate."""
_REFUSED_BUILTINS = split_names("declare typeset let shopt getopts integer float nameref autoload print")
_HARMLESS_DEVICE = re.compile(r"/dev/(?:null|stdout|stderr|zero|fd/\d+)")
_NETWORK_DEVICE = re.compile(r"/dev/(?:tcp|udp)/")
_DESCRIPTOR = re.compile(r"\d+-?|-")


class NotUnderstood(Exception):
    """Construct that shells may read differently; the message says why."""


_Piece = tuple[str | None, bool]  # text, None if known only at run time; True if it is always one argument


@dataclass(frozen=True, slots=True)
class _Word:
    raw: str
    text: str | None  # text; None if known only at run time
    is_one: bool  # True if it is always exactly one argument; an unquoted expansion may become several or none


def parse_script(script: str, *, is_bash: bool) -> list[Part]:
    """Return a script's commands and redirections. Raises NotUnderstood if shells, or bash if `is_bash`, may differ."""
    reader = _ScriptReader(script, is_bash=is_bash)
    reader.script()
    return reader.parts


class _ScriptReader:
    def __init__(self, script: str, *, is_bash: bool) -> None:
        self.parts: list[Part] = []
        self._script = script
        self._position = 0
        self._is_bash = is_bash
        self._depth = 0
        self._substitution_depth = 0
        self._heredoc: tuple[str, bool, bool] | None = None  # delimiter, is quoted, cuts tabs

    def script(self) -> None:
        self._lines()
        self._list()
        if self._position < len(self._script) or self._heredoc is not None:
            raise NotUnderstood(UNREAD)

    # Lookahead.

    def _peek(self, length: int = 1) -> str:
        return self._script[self._position : self._position + length]

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._script, self._position)
        return None if match is None else match[0]

    def _take(self, text: str) -> None:
        if not self._script.startswith(text, self._position):
            raise NotUnderstood(UNREAD)
        self._position += len(text)

    def _reserved(self) -> str:
        """Return the reserved word at this position, if a word ends there; empty for another word."""
        word = self._match(_BARE_TEXT) or ""
        next_char = self._script[self._position + len(word) : self._position + len(word) + 1]
        return word if word in _RESERVED_WORDS and (next_char == "" or next_char in _WORD_ENDS) else ""

    def _word_is(self, word: str) -> None:
        self._blanks()
        if self._reserved() != word:
            raise NotUnderstood(UNREAD)
        self._position += len(word)

    def _blanks(self) -> None:
        """Skip spaces, tabs, a comment, and escaped line ends between words."""
        while self._position < len(self._script):
            if self._peek() in (" ", "\t"):
                self._position += 1
            elif self._peek(2) == "\\\n" and self._script[self._position - 1 : self._position] in (" ", "\t", "\n"):
                self._position += 2
                if self._peek() == "#":
                    raise NotUnderstood(UNREAD)
            elif self._peek() == "#":
                self._comment()
            else:
                return

    def _comment(self) -> None:
        if self._position and self._script[self._position - 1] not in " \t\n":
            raise NotUnderstood(UNREAD)
        end = self._script.find("\n", self._position)
        end = len(self._script) if end < 0 else end
        if self._substitution_depth or self._script[end - 1] == "\\":
            raise NotUnderstood("a comment may not end where it seems to")
        self._position = end

    def _lines(self) -> None:
        """Skip blank lines, and the here-document that begins after the first."""
        self._blanks()
        while self._peek() == "\n":
            self._position += 1
            self._body()
            self._blanks()

    # Lists and pipelines.

    def _list(self) -> None:
        """Read commands up to their end: a reserved word after a separator, a parenthesis, `;;`, or the end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotUnderstood("it is nested too deep to be read")
        while True:
            self._and_or()
            if not self._separator() or self._is_end():
                break
        self._depth -= 1

    def _separator(self) -> bool:
        self._blanks()
        mark = self._peek()
        if mark not in (";", "&", "\n") or self._peek(2) in (";;", ";&", "&&", "&>"):
            return False
        if mark != "\n":
            self._position += 1
        self._lines()
        return True

    def _is_end(self) -> bool:
        return (
            self._peek() in ("", ")")
            or self._peek(2) == ";;"
            or self._reserved() in ("}", "then", "elif", "else", "fi", "do", "done", "esac")
        )

    def _and_or(self) -> None:
        self._pipeline()
        self._blanks()
        while self._peek(2) in ("&&", "||"):
            self._position += 2
            self._lines()
            self._pipeline()
            self._blanks()

    def _pipeline(self) -> None:
        if self._reserved() == "!":
            self._position += 1
            if self._peek() not in (" ", "\t"):
                raise NotUnderstood(UNREAD)
            self._blanks()
            if self._reserved() or self._peek() == "(":
                raise NotUnderstood(UNREAD)
        self._command()
        self._blanks()
        while self._peek() == "|" and self._peek(2) != "||":
            self._position += 1
            self._lines()
            self._command()
            self._blanks()

    # Commands.

    def _command(self) -> None:
        word = self._reserved()
        function = _FUNCTION.match(self._script, self._position)
        if function is not None and function[1] not in _RESERVED_WORDS and self._heredoc is None:
            self._position = function.end()
            word = self._reserved()
            if word != "{" and self._peek() != "(":
                raise NotUnderstood(UNREAD)
        if self._peek() == "(":
            self._subshell()
        elif word == "[[" and self._is_bash:
            self._double_brackets()
        elif word:
            parse = self._compounds().get(word)
            if parse is None:
                raise NotUnderstood(UNREAD)
            self._position += len(word)
            parse()
        else:
            self._simple()
            return
        self._blanks()
        while self._redirect():
            self._blanks()

    def _compounds(self) -> dict[str, Callable[[], None]]:
        return {
            "{": self._group,
            "if": self._if,
            "while": self._while,
            "until": self._while,
            "for": self._for,
            "case": self._case,
        }

    def _group(self) -> None:
        if self._peek() not in (" ", "\t", "\n"):
            raise NotUnderstood(UNREAD)
        self._lines()
        self._list()
        self._word_is("}")

    def _subshell(self) -> None:
        self._position += 1
        if self._peek() == "(":
            raise NotUnderstood("what it computes is known when it runs")
        self._lines()
        self._list()
        self._take(")")

    def _clause(self) -> None:
        self._lines()
        self._list()

    def _if(self) -> None:
        self._clause()
        self._word_is("then")
        self._clause()
        while self._reserved() == "elif":
            self._word_is("elif")
            self._clause()
            self._word_is("then")
            self._clause()
        if self._reserved() == "else":
            self._word_is("else")
            self._clause()
        self._word_is("fi")

    def _while(self) -> None:
        self._clause()
        self._do()

    def _do(self) -> None:
        self._word_is("do")
        self._clause()
        self._word_is("done")

    def _for(self) -> None:
        self._blanks()
        name = self._match(_NAME)
        if name is None:
            raise NotUnderstood(UNREAD)
        if not is_plain(name):
            self.parts.append(Unparsed(name, SETS_VARIABLE))
        self._position += len(name)
        self._word_is("in")
        self._blanks()
        while self._peek() not in ("", ";", "\n"):
            self._word()
            self._blanks()
        if not self._separator():
            raise NotUnderstood(UNREAD)
        self._do()

    def _case(self) -> None:
        if self._substitution_depth:
            raise NotUnderstood(UNREAD)
        self._blanks()
        self._word()
        self._word_is("in")
        self._lines()
        while self._reserved() != "esac":
            self._pattern()
            self._lines()
            if self._peek(2) != ";;":
                self._list()
                self._blanks()
            if self._reserved() == "esac":
                break
            self._take(";;")
            if self._peek() == "&":
                raise NotUnderstood(UNREAD)
            self._lines()
        self._word_is("esac")

    def _pattern(self) -> None:
        if self._peek() == "(":
            self._position += 1
            self._blanks()
        while True:
            pattern = self._match(_PATTERN)
            if pattern is None or pattern in _RESERVED_WORDS:
                raise NotUnderstood(UNREAD)
            self._position += len(pattern)
            self._blanks()
            if self._peek() != "|":
                break
            self._position += 1
            self._blanks()
        self._take(")")

    def _double_brackets(self) -> None:
        self._position += 2
        words: list[_Word] = []
        self._blanks()
        while self._reserved() != "]]":
            words.append(self._word())
            self._blanks()
        self._word_is("]]")
        _check_test(words, is_double=True, is_bash=True)

    def _simple(self) -> None:
        assignments: list[_Word] = []
        words: list[_Word] = []
        is_empty = True
        while True:
            self._blanks()
            if self._redirect():
                is_empty = False
                continue
            if self._peek() == "" or (self._peek() in _WORD_ENDS and not self._is_process_substitution()):
                break
            is_empty = False
            word = self._word_of_command(is_first=not words)
            (words if words or not _ASSIGNMENT.match(word.raw) else assignments).append(word)
        if is_empty:
            raise NotUnderstood(UNREAD)
        self.parts += _simple_command(assignments, words, is_bash=self._is_bash)

    def _word_of_command(self, *, is_first: bool) -> _Word:
        if is_first and (self._peek() in ("!", "%") or self._match(_SUBSCRIPT) is not None):
            raise NotUnderstood(UNREAD)
        if self._reserved() and (is_first or self._reserved() in ("{", "}")):
            raise NotUnderstood(UNREAD)
        return self._word()

    # Redirections.

    def _is_process_substitution(self) -> bool:
        return self._is_bash and self._peek(2) in ("<(", ">(")

    def _redirect(self) -> bool:
        """Read a redirection; return False if there is none."""
        match = _REDIRECT.match(self._script, self._position)
        if match is None or self._is_process_substitution():
            return False
        descriptor, mark = match[1] or "", match[2] or match[4]
        self._position = match.end()
        is_of_bash = mark in ("<<<", "&>")
        if mark == "<>" or (is_of_bash and (descriptor or not self._is_bash)) or self._peek() in tuple("&<>|("):
            raise NotUnderstood(UNREAD)
        self._blanks()
        if mark in ("<<", "<<-"):
            self._delimiter(cuts_tabs=mark == "<<-")
            return True
        word = self._word()
        if mark in (">&", "<&") and re.fullmatch(r"[0-9]|-", word.raw) is None:
            raise NotUnderstood(UNREAD)
        if mark != "<<<" and not word.raw.startswith(("<(", ">(")):
            self.parts += redirect_parts(mark, word.text, word.raw)
        return True

    def _delimiter(self, *, cuts_tabs: bool) -> None:
        match = _HEREDOC.match(self._script, self._position)
        if match is None or self._heredoc is not None:
            raise NotUnderstood("a here-document cannot be read")
        self._heredoc = (match[2], bool(match[1]), cuts_tabs)
        self._position = match.end()

    def _body(self) -> None:
        if self._heredoc is None:
            return
        delimiter, is_quoted, cuts_tabs = self._heredoc
        self._heredoc = None
        start = self._position
        while self._position < len(self._script):
            end = self._script.find("\n", self._position)
            end = len(self._script) if end < 0 else end
            line, line_start = self._script[self._position : end], self._position
            self._position = min(end + 1, len(self._script))
            if (line.lstrip("\t") if cuts_tabs else line) == delimiter:
                body = self._script[start:line_start]
                if not is_quoted and _HEREDOC_BODY.fullmatch(body) is None:
                    break
                if self._substitution_depth and _NESTED_HEREDOC_BODY.fullmatch(body) is None:
                    break
                self._position = end  # this line end separates commands
                return
        raise NotUnderstood("a here-document cannot be read")

    # Words.

    def _word(self) -> _Word:
        start = self._position
        if self._is_process_substitution():
            self._substitution()
            pieces: list[_Piece] = [(None, True)]
        else:
            pieces = []
            while self._peek() != "" and self._peek() not in _WORD_ENDS:
                pieces.append(self._piece(start))
        raw = self._script[start : self._position]
        next_char = self._peek()
        is_glued = raw.startswith(("<(", ">(")) and next_char != "" and next_char not in _WORD_ENDS
        if raw == "" or is_glued or next_char == "(" or self._peek(2) in ("<(", ">("):
            raise NotUnderstood(UNREAD)
        if next_char in ("<", ">") and (raw.isdigit() or "{" in raw or raw.startswith(("<", ">"))):
            raise NotUnderstood(UNREAD)
        if "\n" in raw and self._heredoc is not None:
            raise NotUnderstood("a here-document cannot be read")
        return _Word(raw, _join_known(text for text, _ in pieces), all(is_one for _, is_one in pieces))

    def _piece(self, start: int) -> _Piece:
        match self._peek():
            case "'":
                end = self._script.find("'", self._position + 1)
                if end < 0:
                    raise NotUnderstood(UNREAD)
                text = self._script[self._position + 1 : end]
                self._position = end + 1
                return text, True
            case '"':
                return self._read_quoted()
            case "\\":
                return self._read_escaped(), True
            case "$":
                return None, self._dollar() in _NUMBER_PARAMETERS
            case _:
                return self._read_bare(start)

    def _read_escaped(self) -> str:
        # In a locale such as GBK or Shift_JIS, which a script may set itself, a backslash after a byte of another
        # character is a part of that character: what it seems to escape would end a word or a command.
        if not self._script[max(self._position - 1, 0) : self._position].isascii():
            raise NotUnderstood("a backslash may belong to the character before it")
        character = self._script[self._position + 1 : self._position + 2]
        if character in ("", "\n"):
            raise NotUnderstood("a word of the script continues in the next line")
        self._position += 2
        return character

    def _read_bare(self, start: int) -> _Piece:
        text = self._match(_BARE_TEXT)
        if text is None or not _BLANK_BYTES.isdisjoint(text.encode()):
            raise NotUnderstood(UNREAD)
        is_start = self._position == start
        self._position += len(text)
        is_whole = is_start and (self._peek() == "" or self._peek() in _WORD_ENDS)
        if text in ("{}", "[", "[[") and is_whole:
            return text, True
        if re.search(r"[{}\[]", text):
            pattern = _WITH_BRACKETS if "[" in text else _WITH_BRACES
            if not is_whole or pattern.fullmatch(text) is None:
                raise NotUnderstood(UNREAD)
            return None, False
        if re.search(r"[*?]", text):
            return None, False
        is_home = (is_start and text.startswith("~")) or re.search(r"[=:]~", text) is not None
        return (None if is_home else text), True

    def _read_quoted(self) -> _Piece:
        self._position += 1
        texts: list[str | None] = []
        is_one = True
        while self._peek() != '"':
            match self._peek():
                case "" | "`":
                    raise NotUnderstood(UNREAD)
                case "\\":
                    character = self._read_escaped()
                    texts.append(character if character in '$`"\\' else f"\\{character}")
                case "$" if self._peek(2) == '$"':
                    self._position += 1
                    texts.append(None)
                case "$":
                    is_one = self._dollar() not in ("$@", "${@}") and is_one
                    texts.append(None)
                case character:
                    texts.append(character)
                    self._position += 1
        self._position += 1
        return _join_known(texts), is_one

    def _dollar(self) -> str:
        start = self._position
        expansion = self._match(_ARITHMETIC) or self._match(_EXPANSION) or self._match(_SIMPLE_EXPANSION)
        if expansion is None and self._is_bash:
            expansion = self._match(_EXPANSION_OF_BASH)
        if expansion is not None:
            self._position += len(expansion)
        elif self._peek(2) == "$(" and self._peek(3) != "$((":
            self._substitution()
        else:
            raise NotUnderstood("an expansion is more than a name and a plain text")
        return self._script[start : self._position]

    def _substitution(self) -> None:
        """Read `$(…)`, `<(…)` or `>(…)` and the commands in it."""
        if self._heredoc is not None:
            raise NotUnderstood("a here-document cannot be read")
        self._position += 2
        self._substitution_depth += 1
        self._lines()
        self._list()
        self._blanks()
        if self._heredoc is not None:
            raise NotUnderstood("a here-document cannot be read")
        self._take(")")
        self._substitution_depth -= 1


def _join_known(texts: Iterable[str | None]) -> str | None:
    items = list(texts)
    known = [text for text in items if text is not None]
    return "".join(known) if len(known) == len(items) else None


def _simple_command(assignments: Sequence[_Word], words: Sequence[_Word], *, is_bash: bool) -> Iterator[Part]:
    names = [word.raw.partition("=")[0] for word in assignments]
    if not words:
        for name in names:
            if not is_plain(name):
                yield Unparsed(f"{name}=…", SETS_VARIABLE)
        return
    changed_variables = tuple(
        f"{name}=…" if word.text is None else word.text
        for name, word in zip(names, assignments, strict=True)
        if not is_harmless(name)
    )
    command = ShellCommand(tuple(word.text for word in words), changed_variables)
    name = words[0].text or ""
    _check_builtin(name, words[1:], is_bash=is_bash)
    is_builtin = name in ("unset", "[") or name in _DECLARING_BUILTINS
    if not is_builtin or (name == "local" and not is_bash):  # ksh93 has no `local`, and looks for a program
        yield command
    elif changed_variables:
        yield Unparsed(changed_variables[0], SETS_VARIABLE)


def _check_builtin(name: str, words: Sequence[_Word], *, is_bash: bool) -> None:
    """Raise NotUnderstood if a builtin may evaluate its arguments, or change how the rest of the script is parsed."""
    if name in _DECLARING_BUILTINS:
        is_fine = all(_is_declared(word, is_export=name == "export") for word in words)
    elif name in ("unset", "read"):
        options = ("-f", "-v") if name == "unset" else ("-r",)
        is_fine = all(is_plain(word.text or "") for word in words if word.raw not in options)
    elif name in ("[", "test"):
        if name == "[" and (not words or words[-1].raw != "]"):
            raise NotUnderstood(UNREAD)
        _check_test(words[:-1] if name == "[" else words, is_double=False, is_bash=is_bash)
        return
    elif name == "set":
        is_fine = all(_SET_ARGUMENT.fullmatch(word.text or "") for word in words)
    elif name == "printf" and not is_bash:
        is_fine = bool(words) and _PRINTF_FORMAT.fullmatch(words[0].text or "%") is not None
    elif name in _NUMERIC_BUILTINS and not is_bash:
        is_fine = all(_is_number(word) for word in words)
    else:
        is_fine = name not in _REFUSED_BUILTINS
    if not is_fine:
        raise NotUnderstood(f"what {name} is given is known when it runs")


def _is_declared(word: _Word, *, is_export: bool) -> bool:
    assignment = _ASSIGNMENT.match(word.raw)
    if assignment is None:
        return _NAME.fullmatch(word.raw) is not None
    return word.is_one and (is_harmless(assignment[1]) or (not is_export and is_plain(assignment[1])))


def _is_number(word: _Word) -> bool:
    return word.raw.strip('"') in _NUMBER_PARAMETERS or re.fullmatch(r"-?[0-9]+", word.text or "") is not None


def _check_test(words: Sequence[_Word], *, is_double: bool, is_bash: bool) -> None:
    """Raise NotUnderstood unless a test evaluates nothing: in numbers and indexes a shell may run text."""
    if words and words[0].raw == "!":
        words = words[1:]
    is_fine = is_double or all(word.is_one for word in words)
    match [word.text or "" for word in words]:
        case [_]:
            pass
        case [operator, _]:
            is_fine = is_fine and _FILE_TEST.fullmatch(operator) is not None
        case [_, operator, _] if _NUMERIC_TEST.fullmatch(operator):
            is_fine = is_fine and ((is_bash and not is_double) or all(_is_number(word) for word in words[::2]))
        case [_, operator, _]:
            is_fine = is_fine and (_TEXT_TEST.fullmatch(operator) is not None or (is_double and operator == "=~"))
        case _:
            is_fine = False
    if not is_fine:
        raise NotUnderstood("what it computes is known when it runs")


def redirect_parts(mark: str, path: str | None, shown: str) -> Iterator[Part]:
    """Yield the parts of a redirection. `mark` is its operator, `path` the word after it; None if unknown."""
    if path is not None and (
        (mark in (">&", "<&") and _DESCRIPTOR.fullmatch(path)) or _HARMLESS_DEVICE.fullmatch(path)
    ):
        return
    if path is not None and _NETWORK_DEVICE.match(path):
        yield Unparsed(path, "it opens a connection")
        return
    if mark.startswith("<"):
        yield Redirect(shown, path, is_read=True)
    if mark != "<":
        yield Redirect(shown, path)
