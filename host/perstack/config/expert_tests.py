"""The tests that a definition file has for its Experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import normpath
from pathlib import Path

from perstack.config.check import kind_of, read_table, suggestion
from perstack.config.experts import Draft
from perstack.config.key_path import KeyPath, spell
from perstack.config.load import DefinitionFile
from perstack.config.source import TomlValue
from perstack.core.expert_tests import ExpertTest
from perstack.dataclass import dataclass
from perstack.errors import UsageError

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class WrittenTest:
    """A test, and where it stands."""

    expert: str
    test: ExpertTest
    place: str
    """`file:line`."""
    folder: Path
    """That of the file: what the test names is seen from there. Absolute."""

    @property
    def title(self) -> str:
        """`writer: a haiku`."""
        return f"{self.expert}: {self.test.name}"

    @property
    def model(self) -> Path | None:
        """The script or the recording."""
        return None if self.test.model is None else self.seen(self.test.model)

    @property
    def workspace(self) -> Path | None:
        """The folder whose copy it works in."""
        return None if self.test.workspace is None else self.seen(self.test.workspace)

    def seen(self, name: str) -> Path:
        """A name of the test, from the folder of its file."""
        return Path(normpath(self.folder / name))


def read_tests(definition: DefinitionFile) -> tuple[WrittenTest, ...]:
    """All tests that are right as far as they go, in the order of the files. What is wrong is added to its problems."""
    return tuple(test for draft in definition.drafts.values() for test in _tests_of(draft))


def _tests_of(draft: Draft) -> list[WrittenTest]:
    at, report = (*draft.at, "tests"), draft.report
    if draft.tests is None:
        return []
    if not isinstance(draft.tests, list):
        report.error(at, f"must be tables, not {kind_of(draft.tests)}: write [[{_header(draft)}]] for each test")
        return []
    found: list[WrittenTest] = []
    for index, raw in enumerate(draft.tests):
        written = _read(draft, raw, (*at, index))
        if written is None:
            continue
        first = next((one for one in found if one.test.name == written.test.name), None)
        if first is not None:
            report.error((*at, index, "name"), f"`{written.test.name}` is a test already, at {first.place}: rename one")
        else:
            found.append(written)
    return found


def _read(draft: Draft, raw: TomlValue, at: KeyPath) -> WrittenTest | None:
    report = draft.report
    test = read_table(ExpertTest, raw, at, report)
    if test is None or not test.name:
        return None
    written = WrittenTest(draft.expert.key, test, report.place(at), report.source.path.parent.absolute())
    if written.model is not None and not written.model.is_file():
        report.error((*at, "model"), f"there is no file `{test.model}` in {written.folder}")
    if written.workspace is not None and not written.workspace.is_dir():
        report.error((*at, "workspace"), f"there is no folder `{test.workspace}` in {written.folder}")
    return written


def _header(draft: Draft) -> str:
    return spell((*draft.at, "tests"))


class NoTests(UsageError):
    """There is nothing to run, which a program that runs tests must notice."""

    exit_code = 1


def chosen(
    tests: Sequence[WrittenTest], experts: Iterable[str], expert: str | None = None, word: str | None = None
) -> tuple[WrittenTest, ...]:
    """Those of an Expert, and with a word in their title, of whatever case.

    `experts` are the names of all Experts. Raises UsageError for one that is not there, and NoTests.
    """
    if expert is not None and expert not in experts:
        raise UsageError(f"there is no Expert `{expert}`{suggestion(expert, experts)}")
    of_expert = tuple(one for one in tests if expert in (None, one.expert))
    if not of_expert:
        who = "no Expert has a test" if expert is None else f"Expert `{expert}` has no test"
        raise NoTests(f"{who}: write [[experts.{expert or 'NAME'}.tests]]")
    found = tuple(one for one in of_expert if word is None or word.casefold() in one.title.casefold())
    if not found:
        titles = ", ".join(one.title for one in of_expert[:_SHOWN])
        more = f" and {len(of_expert) - _SHOWN} more" if len(of_expert) > _SHOWN else ""
        raise NoTests(f"no test has `{word}` in its name; there are: {titles}{more}")
    return found
