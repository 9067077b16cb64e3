"""A machine without tensors: every op is an integer hash of its name, its arguments and what its contexts hold.

So any mistake of routing, order, context or tail changes an answer. Integer scalars are Python ints, bool scalars bools, integer
vectors `Row`s; any other value is a `Box`: a hash with a shape.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mstarc.interp.machine import DrawKey, OpRun, SamplerState
from mstarc.ir.core import ForParts, Program, Value
from mstarc.ir.fold import ABSENT
from mstarc.ir.types import Chunk, Enum, Lit, Media, Parts, Scalar, Struct, Tensor, Type
from mstarc.ir.visit import every_op

INTEGERS = ("i64", "i32", "u8")
_PLAIN = frozenset({str, bytes, bool, int, float, type(None)})
VOCAB = 40  # of the logits that an op with `samples` draws from


def digest(*items: Any) -> int:
    """A 63-bit hash of the contents of plain values, the same in every process."""
    text = repr(tuple(_canonical(item) for item in items)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _canonical(item: Any) -> Any:
    if type(item) in _PLAIN or item is ABSENT:
        return item
    if isinstance(item, Box):
        return ("box", item.key)
    if hasattr(item, "tolist"):
        item = item.tolist()
    if isinstance(item, (list, tuple)):
        return tuple(_canonical(part) for part in item)
    if isinstance(item, Mapping):
        return tuple((key, _canonical(item[key])) for key in sorted(item))
    if isinstance(item, (str, bytes, int, float)):
        return item
    return (type(item).__name__, _canonical(vars(item)))


def shape_of(value: Any) -> tuple[int, ...]:
    if isinstance(value, Box) or hasattr(value, "shape"):
        return tuple(value.shape)
    if isinstance(value, (list, tuple)):
        return (len(value), *(shape_of(value[0]) if value else ()))
    return ()


class Box:
    """An opaque tensor: `key` stands for its content. Operators and indices give new boxes."""

    __slots__ = ("key", "shape")

    def __init__(self, key: int, shape: tuple[int, ...]) -> None:
        self.key, self.shape = key, shape

    def __repr__(self) -> str:
        return f"Box({self.key:016x}, {list(self.shape)})"

    def __hash__(self) -> int:
        return self.key

    def __len__(self) -> int:
        return self.shape[0]

    def same(self, other: object) -> bool:
        """Equality of content (`==` is elementwise)."""
        return isinstance(other, Box) and (self.key, self.shape) == (other.key, other.shape)

    def __getitem__(self, index: Any) -> Box:
        shape = list(self.shape)
        for place, i in enumerate(index if isinstance(index, tuple) else (index,)):
            shape[place] = len(range(shape[place])[i]) if isinstance(i, slice) else -1
        text = repr(index)
        return Box(digest("index", self.key, text), tuple(size for size in shape if size >= 0))

    def __neg__(self) -> Box:
        return Box(digest("neg", self.key), self.shape)


class Row(tuple[Any, ...]):
    """A vector of integers, elementwise under arithmetic."""

    __slots__ = ()


def _elementwise(name: str, plain: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        a, b = (other, self) if swapped else (self, other)
        if not isinstance(a, Box) and not isinstance(b, Box):
            rows = [x if isinstance(x, Row) else None for x in (a, b)]
            size = next(len(row) for row in rows if row is not None)
            left, right = (row if row is not None else Row([x] * size) for row, x in zip(rows, (a, b), strict=True))
            return Row(plain(x, y) for x, y in zip(left, right, strict=True))
        shapes = sorted((shape_of(a), shape_of(b)), key=len)
        return Box(digest(name, a, b), shapes[1] if shapes[0] != shapes[1] else shapes[0])

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
    _plain = getattr(operator, f"__{_name}__")
    for _class in (Box, Row):
        setattr(_class, f"__{_name}__", _elementwise(_name, _plain, False))
        setattr(_class, f"__r{_name}__", _elementwise(_name, _plain, True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Box, f"__{_name}__", _elementwise(_name, getattr(operator, _name), False))


class HashMachine:
    """Implements `mstarc.interp.machine.Machine`.

    config: nested mapping of the values of config paths. externs: Python functions by name; others are hashes too. Integer
    results of ops are below `spread`.
    """

    def __init__(
        self,
        program: Program,
        config: Mapping[str, Any] | None = None,
        externs: Mapping[str, Callable[..., Any]] | None = None,
        spread: int = 1000,
    ) -> None:
        self._program = program
        self._config, self._externs, self._spread = config or {}, externs or {}, spread
        self._decls = {extern.name: extern for extern in program.externs}

    def config(self, path: str) -> Any:
        found: Any = self._config
        for part in path.split("."):
            found = found[part]
        return found

    def empty(self, context: str, cache: str) -> list[int]:
        return []

    def copy(self, store: list[int]) -> list[int]:
        return list(store)

    def invoke(self, run: OpRun) -> tuple[Any, ...]:
        name = f"{run.node}.{run.decl.name}"
        key = (run.key.seed, run.key.walk, run.key.site, run.key.index) if run.key else None
        drawn = [run.draw(Box(digest(name, run.args, k), (VOCAB,))) for k in range(2)] if run.draw else []
        own = digest(name, run.args, run.positions, key, drawn, run.cells)
        seen = digest(own, run.store, run.cross)
        if run.store is not None and not run.frozen:
            run.store.extend(digest(own, i) for i in range(run.takes))
        for cell, held in run.cells.items():
            run.cells[cell] = self._next(held, digest(seen, "cell", cell))
        ports = zip(run.decl.results, run.shapes, strict=True)
        return tuple(self._value(port.type, shape, digest(seen, k)) for k, (port, shape) in enumerate(ports))

    def cell(self, kind: Type, dims: tuple[int, ...], init: Any) -> Any:
        if not dims:
            return init
        integers = isinstance(kind, Tensor) and kind.dtype in INTEGERS
        return Row([init] * dims[0]) if integers and len(dims) == 1 else Box(digest("cell", init), dims)

    def _next(self, held: Any, key: int) -> Any:
        """A new value of a cell, of the type of the old one."""
        if isinstance(held, Box):
            return Box(key, held.shape)
        if isinstance(held, Row):
            return Row(digest(key, i) % self._spread for i in range(len(held)))
        return bool(key & 1) if isinstance(held, bool) else type(held)(key % self._spread)

    def _value(self, kind: Type, shape: tuple[int | None, ...], key: int) -> Any:
        """A value of the type, made from a hash. An unknown dim becomes 1 to 3."""
        match kind:
            case Tensor(dtype):
                sizes = tuple(1 + digest(key, "dim", k) % 3 if size is None else size for k, size in enumerate(shape))
                if dtype == "bool" and not sizes:
                    return bool(key & 1)
                if dtype in INTEGERS and not sizes:
                    return key % self._spread
                if dtype in INTEGERS and len(sizes) == 1:
                    return Row(digest(key, i) % self._spread for i in range(sizes[0]))
                return Box(key, sizes)
            case Scalar(name):
                return {
                    "int": key % self._spread,
                    "float": key % 1000 / 1000,
                    "bool": bool(key & 1),
                    "text": f"t{key % 97}",
                }.get(name, b"")
            case Enum(members):
                return members[key % len(members)]
            case Struct(name, fields):
                return SimpleNamespace(kind=name, **{f: self._value(t, _open(t), digest(key, f)) for f, t in fields})
            case Parts(members):
                structs = dict(_structs(self._program))
                return [self._value(structs[m], (), digest(key, m)) for m in members if m in structs]
            case Media() | Chunk():
                return Box(key, (1 + key % 3,))
            case _:
                raise TypeError(f"no value of type {kind}")

    def sample(self, logits: Any, sampler: SamplerState, key: DrawKey) -> int:
        settings = sampler.settings
        vocab = shape_of(logits)[-1]
        parts: list[Any] = [logits]
        if settings.get("temperature", 1.0) != 0:
            parts += [settings.get("temperature"), key.seed, key.walk, key.site, key.index]
        if settings.get("repetition_penalty", 1.0) != 1:
            parts += [settings["repetition_penalty"], list(sampler.own), list(sampler.over)]
        barred = set(settings.get("suppress", ()))
        barred |= set(settings.get("suppress_first", ())) if not sampler.own else set()
        barred |= set(settings.get("ends", ())) if len(sampler.own) < settings.get("min_tokens", 0) else set()
        token = digest("sample", *parts) % vocab
        while token in barred and len(barred) < vocab:
            token = (token + 1) % vocab
        return token

    def noise(self, dtype: str, shape: tuple[int, ...], key: DrawKey) -> Box:
        return Box(digest("noise", dtype, key.seed, key.walk, key.site, key.index), shape)

    def extern(self, name: str, args: tuple[Any, ...], results: int) -> tuple[Any, ...]:
        if name in self._externs:
            found = self._externs[name](*args)
            return tuple(found) if results > 1 else (found,)
        decl = self._decls[name]
        key = digest("extern", name, args)
        return tuple(self._value(port.type, _open(port.type), digest(key, k)) for k, port in enumerate(decl.results))

    def host(self, value: Any) -> Any:
        return value

    def truth(self, value: Any) -> bool:
        return bool(value.key & 1) if isinstance(value, Box) else bool(value)

    def shape(self, value: Any) -> tuple[int, ...]:
        return shape_of(value)

    def stack(self, items: Sequence[Any]) -> Any:
        return Row(items)

    def cat(self, items: Sequence[Any]) -> Any:
        if all(isinstance(item, (int, float, tuple)) for item in items):
            return Row(x for item in items for x in (item if isinstance(item, tuple) else (item,)))
        shapes = [shape_of(item) or (1,) for item in items]
        return Box(digest("cat", list(items)), (sum(s[0] for s in shapes), *shapes[0][1:]))

    def last(self, value: Any, count: int) -> Any:
        if isinstance(value, tuple):
            return Row(value[max(0, len(value) - count) :])
        size = min(count, value.shape[0])
        return value if size == value.shape[0] else Box(digest("last", value, count), (size, *value.shape[1:]))

    def zero(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return Row(self.zero(x) for x in value)
        return Box(digest("zero"), value.shape) if isinstance(value, Box) else type(value)(0)

    def guide(self, args: tuple[Any, ...]) -> Box:
        return Box(digest("guide", *args), shape_of(args[0]))


def _open(kind: Type) -> tuple[int | None, ...]:
    """A shape with the literal dims of a type known and the others open."""
    dims = kind.dims if isinstance(kind, Tensor) else ()
    return tuple(int(dim.value) if isinstance(dim, Lit) else None for dim in dims)


def _structs(program: Program) -> Iterator[tuple[str, Struct]]:
    """The declared part types, by name: they appear as types of `case` items and of walk params."""
    values: list[Value] = [value for walk in program.walks for value in walk.params]
    for request in program.requests:
        for op in every_op(request.body):
            values += [case.item for case in op.cases] if isinstance(op, ForParts) else []
    yield from ((value.type.name, value.type) for value in values if isinstance(value.type, Struct))
