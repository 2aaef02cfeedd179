"""`dataclass` with the standard library's interface, at a tenth of its cost while modules are imported.

The standard library generates six methods for each class and compiles each of them. A Run imports a hundred and thirty
such classes before its first event, and every command pays for that: up to that event 1.71 instead of 1.31 thousand
million instructions, 30 % more (counted by valgrind, Python 3.11). Here all classes share their methods, except
`__init__`, which is compiled once a class has several values. Type checkers see the standard library's `dataclass`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, cast

_T = TypeVar("_T")


class _FactoryMarker:
    """Default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


# values of a class until its `__init__` is compiled, which takes as long as setting the fields of fifty
VALUES_BEFORE_COMPILING = 20


class _LazyInit:
    """Placeholder for the `__init__` of a class: it sets the fields of the first values, then compiles the method."""

    def __init__(self, cls: type, *, frozen: bool) -> None:
        """Prepare the method of this class."""
        self._cls = cls
        self._frozen = frozen
        self._uses = 0
        self._parameters: _InitParameters | None = None

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        """Return a function that sets the fields of one of the first values; later compile `__init__` for the class."""
        self._uses += 1
        if instance is not None and self._uses <= VALUES_BEFORE_COMPILING:
            return partial(self._set, instance)
        compiled = _compile_init(self._cls, frozen=self._frozen)
        type.__setattr__(self._cls, "__init__", compiled)
        return cast("Callable[..., None]", compiled.__get__(instance, owner))

    def _set(self, instance: object, *args: object, **kwargs: object) -> None:
        if self._parameters is None:
            self._parameters = _InitParameters(self._cls)
        values = self._parameters.values_of(args, kwargs)
        if values is None:
            _compile_init(self._cls, frozen=self._frozen)(instance, *args, **kwargs)  # raises the TypeError
            return
        for name, value in values.items():
            if value is not MISSING:
                object.__setattr__(instance, name, value)
        if hasattr(self._cls, "__post_init__"):
            cast("Any", instance).__post_init__()


class _InitParameters:
    """The parameters of a class's `__init__`, and the defaults of its fields."""

    def __init__(self, cls: type) -> None:
        cls_fields = fields(cls)
        self._positional = [field.name for field in cls_fields if field.init and not field.kw_only]
        self._defaults: dict[str, object] = {field.name: field.default for field in cls_fields}
        self._factories = [
            (field.name, field.default_factory) for field in cls_fields if field.default_factory is not MISSING
        ]
        self._required = {
            field.name
            for field in cls_fields
            if field.init and field.default is MISSING and field.default_factory is MISSING
        }
        self._computed = {field.name for field in cls_fields if not field.init}

    def values_of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object] | None:
        """Return the values of all fields, MISSING for those without one; None if `__init__` refuses the arguments."""
        arguments = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        values = {**self._defaults, **arguments}
        are_distinct = len(arguments) == len(args) + len(kwargs)
        are_known = len(values) == len(self._defaults) and self._computed.isdisjoint(kwargs)
        if not (are_distinct and are_known and self._required.issubset(arguments)):
            return None
        for name, make in self._factories:
            if name not in arguments:
                values[name] = make()
        return values


def _compile_init(cls: type, *, frozen: bool) -> Callable[..., None]:
    namespace: dict[str, object] = {"put_in": object.__setattr__, "absent": _FactoryMarker()}
    required, keyword_only, body = ["self"], list[str](), list[str]()
    for field in fields(cls):
        parameter, value = _parameter_source(field, namespace)
        if field.init:
            (keyword_only if field.kw_only else required).append(parameter)
        if value:
            body.append(f"put_in(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*required, *(["*", *keyword_only] if keyword_only else [])])
    lines = "\n  ".join(body or ["pass"])
    source = f"def create({', '.join(namespace)}):\n def __init__({parameters}):\n  {lines}\n return __init__"
    scope: dict[str, Any] = {}
    exec(source, vars(sys.modules[cls.__module__]), scope)  # noqa: S102 - made of names of fields alone
    compiled = cast("Callable[..., None]", scope["create"](**namespace))
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    compiled.__annotations__ = {**{field.name: field.type for field in fields(cls) if field.init}, "return": None}
    return compiled


def _parameter_source(field: Field[Any], namespace: dict[str, object]) -> tuple[str, str]:
    """Return the source of a field's parameter, and the value to set the field to; "" if a method sets it."""
    if field.default is not MISSING:
        namespace[f"default_{field.name}"] = field.default
        return f"{field.name}=default_{field.name}", field.name if field.init else f"default_{field.name}"
    if field.default_factory is MISSING:
        return field.name, field.name if field.init else ""
    namespace[f"make_{field.name}"] = field.default_factory
    call = f"make_{field.name}()"
    return f"{field.name}=absent", f"{call} if {field.name} is absent else {field.name}" if field.init else call


_COMPARISON_KEYS: dict[type, Callable[[object], object]] = {}


def _comparison_key(value: object) -> object:
    """Return the value's fields that are compared, by a getter that is made once for each class."""
    kind = type(value)
    if kind not in _COMPARISON_KEYS:
        names = [field.name for field in fields(cast("Any", kind)) if field.compare]
        _COMPARISON_KEYS[kind] = attrgetter(*names) if names else lambda value: ()
    return _COMPARISON_KEYS[kind](value)


def _eq(self: object, other: object) -> object:
    return _comparison_key(self) == _comparison_key(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: object) -> int:
    return hash(_comparison_key(self))


@recursive_repr("...")
def _repr(self: object) -> str:
    pairs = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(cast("Any", self)) if field.repr]
    return f"{self.__class__.__qualname__}({', '.join(pairs)})"


def _refuse_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: object) -> list[object]:
    return [getattr(self, field.name) for field in fields(cast("Any", self))]


def _set_state(self: object, state: list[object]) -> None:
    for field, value in zip(fields(cast("Any", self)), state, strict=True):
        object.__setattr__(self, field.name, value)


_SHARED = {"__repr__": _repr, "__eq__": _eq}
_FROZEN = {"__hash__": _hash, "__setattr__": _refuse_set, "__delattr__": _refuse_delete}
_COPIED = {"__getstate__": _get_state, "__setstate__": _set_state}
"""Copying sets slots by attribute, which a frozen value refuses."""


@contextmanager
def _allow_frozen_bases(cls: type, *, to_be_frozen: bool) -> Generator[None]:
    """Clear the frozen flag of the bases while the block runs.

    The standard library makes this class without `frozen`, and would refuse a frozen base. Raises TypeError, as it
    does, for a class that is not frozen and has a frozen base.
    """
    key = "__dataclass_params__"
    base_params = [vars(base)[key] for base in cls.__mro__[1:] if key in vars(base)]
    frozen_params = [params for params in base_params if params.frozen]
    if frozen_params and not to_be_frozen:
        raise TypeError("cannot inherit non-frozen dataclass from a frozen one")
    for params in frozen_params:
        params.frozen = False
    try:
        yield
    finally:
        for params in frozen_params:
            params.frozen = True


def _has_marker(annotation: str) -> bool:
    """Return whether an annotation may be no field's type.

    The standard library is not shown others: it would search each text three times, a third of its time for a class.
    """
    return "ClassVar" in annotation or "KW_ONLY" in annotation or "InitVar" in annotation


def _make_class(cls: type[_T], *, frozen: bool, slots: bool, kw_only: bool) -> type[_T]:
    own_names = set(vars(cls))
    if "__eq__" in own_names and vars(cls)["__hash__"] is None:
        own_names.remove("__hash__")  # Python adds `__hash__ = None` to a class that defines `__eq__`
    methods = {**_SHARED, **(_FROZEN if frozen else {"__hash__": None}), **(_COPIED if frozen and slots else {})}
    for name, method in methods.items():
        if name not in own_names:
            setattr(cls, name, method)
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise the standard library computes the signature for the docstring
    annotations = vars(cls).get("__annotations__", {})
    texts = {name: text for name, text in annotations.items() if isinstance(text, str) and not _has_marker(text)}
    annotations.update(dict.fromkeys(texts))
    try:
        with _allow_frozen_bases(cls, to_be_frozen=frozen):
            new_class = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    finally:
        annotations.update(texts)
    for field in fields(cast("Any", new_class)):
        if field.name in texts:
            field.type = texts[field.name]
    vars(new_class)["__dataclass_params__"].frozen = frozen
    if "__init__" not in own_names:
        setattr(new_class, "__init__", _LazyInit(new_class, frozen=frozen))  # noqa: B010 - to checkers it is a method
    return new_class


if TYPE_CHECKING:  # type checkers know only the standard library's
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False):
        """Return the class, or a decorator, as the standard library does, without `order` and InitVar."""

        def make(cls):
            return _make_class(cls, frozen=frozen, slots=slots, kw_only=kw_only)

        return make if cls is None else make(cls)

    def replace(value, /, **changes):
        """Copy a value without slots and without `__init__`: seven times faster for a value with many fields."""
        instance = object.__new__(type(value))
        fields = instance.__dict__  # as `vars`, without the call
        fields.update(value.__dict__)
        count = len(fields)
        fields.update(changes)
        if len(fields) != count:
            raise TypeError(f"{type(value).__name__} has no field of a name in {', '.join(changes)}")
        return instance
