"""perstack.dataclass: like that of the standard library, and compiled when it is used."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import cached_property, partial
from itertools import product
from types import FunctionType
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from pydantic import TypeAdapter

from perstack.dataclass import VALUES_BEFORE_COMPILING, dataclass
from perstack.dataclass import replace as copied_with

T = TypeVar("T")
KINDS = [
    dict(zip(("frozen", "slots", "kw_only"), switches, strict=True)) for switches in product((False, True), repeat=3)
]


def classes(decorate: Callable[..., Any], kind: dict[str, bool]) -> list[type[Any]]:
    """Classes with everything that those of this project have."""

    @decorate(**kind)
    class Plain:
        """Has a text."""

        a: int
        b: str = "b"
        kinds: ClassVar[tuple[str, ...]] = ("x",)

    @decorate(**kind)
    class Rich(Plain):
        c: list[int] = field(default_factory=list)
        d: int = field(default=4, compare=False)
        e: str = field(default="e", repr=False)
        own: int = field(init=False, default=7)
        _: KW_ONLY
        f: float = 0.5

    @decorate(**kind)
    class Empty:
        pass

    @decorate(**kind)
    class Of(Generic[T]):
        it: T

    @decorate(**kind)
    class Ready:
        a: int
        b: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", self.a + 1)

    @decorate(**kind)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and other.a % 10 == self.a % 10

        def __repr__(self) -> str:
            return "own"

    return [Plain, Rich, Empty, Of, Ready, Own]


def outcome(work: Callable[[], object]) -> object:
    """What came of it: shown, or the error."""
    try:
        return repr(work())
    except (TypeError, AttributeError, ValueError) as error:
        return type(error), str(error)


def acts(cls: type[Any], kind: dict[str, bool], first: Any, second: Any) -> list[Callable[[], object]]:
    def make_instance(given: Any) -> Any:
        return cls(*given[0], **given[1])

    names = [one.name for one in fields(cls) if one.init]
    if not (kind["frozen"] and kind["slots"]):
        names.append("other")  # where that of the standard library fails with an error about super()
    return [
        lambda: make_instance(first),
        lambda: make_instance(first) == make_instance(first),
        lambda: make_instance(first) == make_instance(second),
        lambda: make_instance(first) == object(),
        lambda: hash(make_instance(first)) == hash(make_instance(first)),
        lambda: asdict(make_instance(first)),
        lambda: replace(make_instance(first), **second[1]),
        lambda: copy.copy(make_instance(first)),
        lambda: copy.deepcopy(make_instance(first)),
        *(lambda name=name: setattr(make_instance(first), name, 1) for name in names),
        *(lambda name=name: delattr(make_instance(first), name) for name in names),
    ]


GIVEN: list[tuple[list[int], dict[str, int]]] = [
    ([], {}),
    ([1], {}),
    ([11], {}),
    ([1, 2], {}),
    ([], {"a": 1}),
    ([], {"a": 1, "d": 3, "f": 2}),
    ([1], {"b": 2, "c": 3}),
    ([1], {"a": 2}),
    ([1, 2, 3, 4, 5, 6, 7], {}),
    ([1], {"z": 2}),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_are_as_those_of_the_standard_library(kind: dict[str, bool]) -> None:
    for ours, theirs in zip(classes(dataclass, kind), classes(dataclasses.dataclass, kind), strict=True):
        for first, second in product(GIVEN, GIVEN):
            mine, his = ([outcome(act) for act in acts(one, kind, first, second)] for one in (ours, theirs))
            assert mine == his


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_first_value_of_a_class_is_as_one_of_the_standard_library(kind: dict[str, bool]) -> None:
    for args, named in GIVEN:
        for ours, theirs in zip(classes(dataclass, kind), classes(dataclasses.dataclass, kind), strict=True):
            mine, his = (outcome(partial(one, *args, **named)) for one in (ours, theirs))
            assert mine == his


def test_a_value_is_copied_with_other_values_of_its_own_fields_alone() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 0

    before = Point(1)
    assert copied_with(before, y=2) == replace(before, y=2) == Point(1, 2)
    assert before == Point(1)
    with pytest.raises(TypeError, match="Point has no field of a name in x, z"):
        copied_with(before, x=2, z=3)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_class_is_as_one_of_the_standard_library(kind: dict[str, bool]) -> None:
    for ours, theirs in zip(classes(dataclass, kind), classes(dataclasses.dataclass, kind), strict=True):
        assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
        assert is_dataclass(ours)
        assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
        assert ours.__match_args__ == theirs.__match_args__
        assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
        assert (ours.__hash__ is None) == (theirs.__hash__ is None)


@dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[str, ...] = ()


def test_a_frozen_value_is_pickled_shown_in_a_circle_and_read_by_pydantic() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, ("x",)))) == Kept(1, ("x",))
    assert TypeAdapter(Kept).validate_python({"a": "1", "b": ["x"]}) == Kept(1, ("x",))
    circle = Kept(1, held := [])  # type: ignore[arg-type,var-annotated]
    held.append(circle)
    assert repr(circle) == "Kept(a=1, b=[...])"


def test_classes_of_the_standard_library_and_these_inherit_from_each_other() -> None:
    @dataclass(frozen=True, slots=True)
    class Ours:
        a: int

    @dataclasses.dataclass(frozen=True)
    class Theirs(Ours):
        b: int = 2

    @dataclass(frozen=True)
    class OursAgain(Theirs):
        c: int = 3

    value = OursAgain(1)
    assert (asdict(value), value == OursAgain(1, 2, 3), replace(value, a=4).a) == ({"a": 1, "b": 2, "c": 3}, True, 4)
    for one in (value, Theirs(1)):
        with pytest.raises(FrozenInstanceError):
            one.a = 5  # type: ignore[misc]  # what is tried
    for decorate in (dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
            decorate(type("Loose", (Ours,), {"__annotations__": {"d": int}, "d": 1}))


def test_the_init_of_a_class_is_compiled_when_it_is_asked_for_or_after_some_values() -> None:
    @dataclass(frozen=True)
    class Local:
        a: int

        @cached_property
        def twice(self) -> int:
            return self.a * 2

    class Below(Local):
        def __init__(self) -> None:
            super().__init__(4)

    for _ in range(VALUES_BEFORE_COMPILING // 2):
        assert (Below().twice, Local(3).twice) == (8, 6)
    assert not isinstance(vars(Local)["__init__"], FunctionType)
    assert Local(3).twice == 6
    assert isinstance(vars(Local)["__init__"], FunctionType)
    assert isinstance(Kept.__init__, FunctionType)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        Local(3).a = 4  # type: ignore[misc]
