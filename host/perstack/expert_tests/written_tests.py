"""Tests of Experts in definition files: reading, selecting and adding them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os.path import normpath
from pathlib import Path

from perstack.core.base.text import suggestion
from perstack.core.definitions.keys import KeyPath, spell
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.expert_tests.models import ExpertTest
from perstack.system.files import locked_folder, replace_private_file
from perstack.toml_reader.definition_with_includes import DefinitionFile
from perstack.toml_reader.experts import Draft
from perstack.toml_reader.source import NotRead, TomlTable, TomlValue, parse_toml, read_bounded
from perstack.toml_reader.tables import kind_of, read_table

_Value = str | int | Sequence[str] | Mapping[str, str] | Mapping[str, str | list[str]]


def add_test(path: Path, expert: str, test: Mapping[str, _Value], expect: Mapping[str, _Value]) -> None:
    """Append a test to a definition file, atomically and under a lock. Raises UsageError if it cannot, and OSError."""
    target = path.resolve()
    try:
        with locked_folder(target.parent) as folder:
            content = _with_test(path, read_bounded(target), expert, test, expect)
            replace_private_file(Path(target.name), content, folder, mode=target.stat().st_mode & 0o777)
    except NotRead as error:
        raise UsageError(f"{path} {error}") from None


def _with_test(
    path: Path, old_content: bytes, expert: str, test: Mapping[str, _Value], expect: Mapping[str, _Value]
) -> bytes:
    text = old_content.decode("utf-8-sig")
    lines = ["", *test_lines(expert, test), ""]
    if expect:  # without it, `test` contains the expectations
        lines += [f"[{spell(('experts', expert, 'tests', 'expect'))}]", *_format_keys(expect), ""]
    ending = "\r\n" if "\r\n" in text else "\n"
    addition = "\n".join(lines).replace("\n", ending)
    gap = "" if not text or text.endswith("\n") else ending
    old_tests = _tests_in_table(parse_toml(text), expert)
    if any(isinstance(entry, dict) and entry.get("name") == test["name"] for entry in old_tests):
        raise UsageError(f"{path}: Expert `{expert}` has a test `{test['name']}` already: choose another name")
    try:
        new_tests = _tests_in_table(parse_toml(text + gap + addition), expert)
    except NotRead:
        new_tests = []
    if len(new_tests) != len(old_tests) + 1:
        raise UsageError(
            f"{path}: no test can be added to Expert `{expert}`: write the Expert as [experts.{expert}],"
            f" and its tests as [[experts.{expert}.tests]]"
        )
    return old_content + (gap + addition).encode()


def test_lines(expert: str, test: Mapping[str, _Value]) -> list[str]:
    """Return the lines of a test in a definition file; a mapping has dotted keys."""
    return [f"[[{spell(('experts', expert, 'tests'))}]]", *_format_keys(test)]


def _tests_in_table(table: TomlTable, expert: str) -> list[TomlValue]:
    experts = table.get("experts")
    entry = experts.get(expert) if isinstance(experts, dict) else None
    tests = entry.get("tests") if isinstance(entry, dict) else None
    return tests if isinstance(tests, list) else []


def _format_keys(values: Mapping[str, _Value]) -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{spell((name, key))} = {_format_value(item)}" for key, item in value.items()]
        else:
            lines.append(f"{name} = {_format_value(value)}")
    return lines


def _format_value(value: str | int | Sequence[str]) -> str:
    import tomli_w

    if not isinstance(value, str | int):
        return f"[{', '.join(map(_format_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


_MAX_LISTED_TITLES = 12


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """Test of an Expert, with its location in a definition file."""

    expert: str
    test: ExpertTest
    place: str
    folder: Path  # absolute folder of the file, to which paths in the test are relative

    @property
    def title(self) -> str:
        """The title, such as `writer: a haiku`."""
        return f"{self.expert}: {self.test.name}"

    @property
    def model(self) -> Path | None:
        """The path of the script or recording; None for the real model."""
        return None if self.test.model is None else self.resolve(self.test.model)

    @property
    def workspace(self) -> Path | None:
        """The path of the folder whose copy the test works in; None for an empty one."""
        return None if self.test.workspace is None else self.resolve(self.test.workspace)

    def resolve(self, name: str) -> Path:
        """Return a path of the test, resolved against the folder of its file."""
        return Path(normpath(self.folder / name))


def read_tests(definition: DefinitionFile) -> tuple[WrittenTest, ...]:
    """Return the valid tests in the order of the files; errors are added to the definition's problems."""
    return tuple(test for draft in definition.drafts.values() for test in _read_tests_of_expert(draft))


def _read_tests_of_expert(draft: Draft) -> list[WrittenTest]:
    at, report = (*draft.at, "tests"), draft.report
    if draft.tests is None:
        return []
    if not isinstance(draft.tests, list):
        report.error(at, f"must be tables, not {kind_of(draft.tests)}: write [[{_table_name(draft)}]] for each test")
        return []
    tests: list[WrittenTest] = []
    for index, raw in enumerate(draft.tests):
        written_test = _read_test(draft, raw, (*at, index))
        if written_test is None:
            continue
        same_name_test = next((earlier for earlier in tests if earlier.test.name == written_test.test.name), None)
        if same_name_test is not None:
            report.error(
                (*at, index, "name"),
                f"`{written_test.test.name}` is a test already, at {same_name_test.place}: rename one",
            )
        else:
            tests.append(written_test)
    return tests


def _read_test(draft: Draft, raw: TomlValue, at: KeyPath) -> WrittenTest | None:
    report = draft.report
    test = read_table(ExpertTest, raw, at, report)
    if test is None or not test.name:
        return None
    written_test = WrittenTest(draft.expert.key, test, report.place(at), report.source.path.parent.absolute())
    if written_test.model is not None and not written_test.model.is_file():
        report.error((*at, "model"), f"there is no file `{test.model}` in {written_test.folder}")
    if written_test.workspace is not None and not written_test.workspace.is_dir():
        report.error((*at, "workspace"), f"there is no folder `{test.workspace}` in {written_test.folder}")
    return written_test


def _table_name(draft: Draft) -> str:
    return spell((*draft.at, "tests"))


class NoTests(UsageError):
    """Raised if there is no test to run, so that scripts that run tests notice it."""

    exit_code = 1


def select_tests(
    tests: Sequence[WrittenTest], experts: Iterable[str], expert: str | None = None, title_part: str | None = None
) -> tuple[WrittenTest, ...]:
    """Return the tests, of one Expert or all, with `title_part` in their titles. Raises UsageError, and NoTests."""
    if expert is not None and expert not in experts:
        raise UsageError(f"there is no Expert `{expert}`{suggestion(expert, experts)}")
    of_expert = tuple(test for test in tests if expert in (None, test.expert))
    if not of_expert:
        subject = "no Expert has a test" if expert is None else f"Expert `{expert}` has no test"
        raise NoTests(f"{subject}: write [[experts.{expert or 'NAME'}.tests]]")
    selected = tuple(test for test in of_expert if title_part is None or title_part.casefold() in test.title.casefold())
    if not selected:
        titles = ", ".join(test.title for test in of_expert[:_MAX_LISTED_TITLES])
        more = f" and {len(of_expert) - _MAX_LISTED_TITLES} more" if len(of_expert) > _MAX_LISTED_TITLES else ""
        raise NoTests(f"no test has `{title_part}` in its name; the tests are: {titles}{more}")
    return selected
