"""Objects that stand for everything that is not the standard library: whatever the module does with one, it works.

A `Stub` is false, empty, 0 as a number and equal only to itself. Against a number it orders as 0, against anything else
as equal, so `device_count() > 0` is False and `version.parse(a) >= version.parse(b)` is True. Arithmetic, indexing,
attributes and calls give another stub; a call with one function or class gives that back, as a decorator would, and a
call with the stand-in for the server arguments gives the stand-in back, as a view of them would. As a base class it is
a plain class, so it mixes with any metaclass. Names that end in Error, Exception or Warning are real exception classes,
`__version__` is "0.0.0", and what comes from torch.nn is strict, as torch is, about attributes that nobody set.

Runs in the child: standard library only.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Generator, Iterator
from opcode import opmap
from typing import Any

VERSION = "0.0.0"
STRICT = "__sandbox_strict__"
_TORCH_MODULE = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"})
_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning")
_RETURNED_UNCHANGED = (types.FunctionType, type, staticmethod, classmethod, property)
_named: dict[str, Any] = {}


def named(path: str) -> Any:
    """What the imported name `path` stands for; the same object every time until `forget`."""
    if path not in _named:
        _named[path] = _make(path)
    return _named[path]


def forget() -> None:
    """Start over, so that nothing that one case did to a stub reaches the next."""
    _named.clear()


def _make(path: str) -> Any:
    parent, _, name = path.rpartition(".")
    if name == "__version__":
        return VERSION
    if path in _TORCH_MODULE:
        return type("Module", (StrictBase,), {"__module__": parent})
    if name[:1].isupper() and name.endswith(_EXCEPTION_ENDINGS):
        base = Warning if name.endswith("Warning") else Exception
        return type(name, (_StubException, base), {"__module__": parent})
    return Stub(path)


class _StubException(BaseException):
    """An exception class of a stubbed package takes any arguments."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args)
        vars(self).update(kwargs)


class StubBase:
    """What a class gets for a base that is a stub: takes any arguments and has any attribute.

    With STRICT in an instance's `__dict__`, an attribute that nobody set is an AttributeError.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        vars(self).update(kwargs)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, item: object) -> type:
        return cls

    @classmethod
    def model_rebuild(cls, *args: object, **kwargs: object) -> None:
        """pydantic's, which modules call on their classes; a class has no other names that it did not define."""

    def __getattr__(self, name: str) -> Any:
        special = name.startswith("_") and name.endswith("_")  # _value_ is an enum's
        if special or STRICT in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return Stub(f"{type(self).__name__}().{name}")


class StrictBase(StubBase):
    """`torch.nn.Module`: attributes are real, and one that nobody set is an AttributeError, in torch's words."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """What `forward` does."""
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, value: object, persistent: bool = True) -> None:
        """Set the attribute."""
        setattr(self, name, value)

    def register_parameter(self, name: str, value: object) -> None:
        """Set the attribute."""
        setattr(self, name, value)


class Stub:
    """One permissive object; the module's docstring says how it behaves. `path` is its name in messages."""

    def __init__(self, path: str, made_by: object = None) -> None:
        vars(self).update(
            __name__=path.rpartition(".")[2],
            __qualname__=path.rpartition(".")[2],
            __module__=path.rpartition(".")[0],
            __doc__=None,
            _stub_path=path,
            _stub_made_by=made_by,
            _stub_base=None,
        )

    def _derived(self, step: str) -> Any:
        return Stub(self._stub_path + step, made_by=self)

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        path = f"{self._stub_path}.{name}"
        value = vars(self)[name] = named(path) if path.replace(".", "").isidentifier() else Stub(path)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The only argument, if it was decorated or is the stand-in; otherwise a stub."""
        if len(args) == 1:
            (only,) = args
            if isinstance(only, StandIn) or (not kwargs and _can_be_decorated(only)):
                return only
        if len(args) == 3 and isinstance(args[1], tuple) and isinstance(args[2], dict) and "__module__" in args[2]:
            name, bases, body = args  # a stub as `metaclass=`
            return types.new_class(name, bases, {}, lambda namespace: namespace.update(body))
        return self._derived("()")

    def __repr__(self) -> str:
        return f"<stub {self._stub_path}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __hash__(self) -> int:
        return id(self)

    def __fspath__(self) -> str:
        return f"/nonexistent/{self._stub_path}"

    def __copy__(self) -> Stub:
        return self

    def __deepcopy__(self, memo: object) -> Stub:
        return self

    # As a class.

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self._class(),)

    def _class(self) -> type:
        if isinstance(self._stub_made_by, Stub) and self._stub_path.endswith("[...]"):
            return self._stub_made_by._class()
        if self._stub_base is None:
            base = named("torch.nn.Module") if self._stub_path.startswith("torch.nn.") else StubBase
            vars(self)["_stub_base"] = type(self.__name__, (base,), {"__module__": self.__module__})
        known: type = self._stub_base
        return known

    def __instancecheck__(self, instance: object) -> bool:
        if isinstance(instance, Stub):
            return instance._stub_made_by is self
        return self.__subclasscheck__(type(instance))

    def __subclasscheck__(self, subclass: object) -> bool:
        return subclass is self or bool({self._stub_base} & set(getattr(subclass, "__mro__", ())))

    # As a container, an iterator and a context.

    def __getitem__(self, key: object) -> Any:
        return self._derived("[...]")

    def __setitem__(self, key: object, value: object) -> None:
        return None

    def __delitem__(self, key: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter([self._derived(f"[{position}]") for position in range(_unpacked_into(sys._getframe(1)))])

    def __reversed__(self) -> Iterator[Any]:
        return iter(())

    def __next__(self) -> Any:
        raise StopIteration

    def __enter__(self) -> Any:
        return self._derived("()")

    def __exit__(self, *exception: object) -> None:
        return None

    async def __aenter__(self) -> Any:
        return self._derived("()")

    async def __aexit__(self, *exception: object) -> None:
        return None

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self._derived("()")

    # As a type in an annotation, or a flag.

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other] if _is_type(other) else self._derived("|")  # noqa: UP007 (a run-time value)

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self] if _is_type(other) else self._derived("|")  # noqa: UP007


class StandIn(Stub):
    """What the function under test gets as its argument; `stand_in` fills it. A view of it is the thing itself."""


def _can_be_decorated(value: object) -> bool:
    return isinstance(value, _RETURNED_UNCHANGED) and getattr(value, "__name__", "") != "<lambda>"


def _is_type(value: object) -> bool:
    return value is None or isinstance(value, type) or typing.get_origin(value) is not None


def _unpacked_into(frame: types.FrameType) -> int:
    """How many names the frame is just unpacking into: 2 for `major, minor = capability()`, 0 for anything else."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if at < 0 or code[at] not in (opmap["UNPACK_SEQUENCE"], opmap["UNPACK_EX"]):
        return 0
    return code[at + 1]


def _give_operators(cls: type) -> None:
    """Define every other special method of a Stub, each of which only returns a value that depends on its name."""

    def returning(value: object) -> Callable[..., object]:
        return lambda self, *rest: value

    def deriving(step: str) -> Callable[..., object]:
        return lambda self, *rest: self._derived(step)

    def ordering(with_zero: Callable[[Any], bool], with_equal: bool) -> Callable[..., object]:
        return lambda self, other: with_zero(other) if isinstance(other, (int, float)) else with_equal

    binary = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "xor", "lshift", "rshift"]
    unary = ["neg", "pos", "abs", "invert", "round", "floor", "ceil", "trunc"]
    for name in [*unary, *(prefix + name for name in binary for prefix in ("", "r", "i"))]:
        setattr(cls, f"__{name}__", deriving(f".{name}()"))
    values = {"bool": False, "len": 0, "int": 0, "index": 0, "float": 0.0, "complex": 0j, "contains": False}
    for name, value in values.items():
        setattr(cls, f"__{name}__", returning(value))
    cls.__lt__ = ordering(lambda other: other > 0, False)  # type: ignore[operator]
    cls.__le__ = ordering(lambda other: other >= 0, True)  # type: ignore[operator]
    cls.__gt__ = ordering(lambda other: other < 0, False)  # type: ignore[operator]
    cls.__ge__ = ordering(lambda other: other <= 0, True)  # type: ignore[operator]


_give_operators(Stub)
