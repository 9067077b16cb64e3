"""Where the names of an expression get their values: params and lets of the request, values, dims and loop counters of a walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mstarc.interp.admit import param_value
from mstarc.interp.errors import ExecutionError, RequestRefused
from mstarc.interp.machine import Machine
from mstarc.interp.streams import ChunkHandle, LiveStream
from mstarc.ir.core import Program, Value
from mstarc.ir.declarations import Param
from mstarc.ir.fold import ABSENT, FoldError, field_of, fold
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr, Ref, Struct, Tensor, Type, ValueId


class RequestScope:
    """Config, params and lets of one request. Each is evaluated when first read; the definition graph has no cycle."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        params: Mapping[str, Any],
        given: frozenset[str],
        wants: frozenset[str],
    ) -> None:
        self._machine = machine
        self._given, self._wants, self._params = given, wants, params
        self._exprs: dict[tuple[str, str], Callable[[], Any]] = {}
        for c in program.configs:
            self._exprs["config", c.name] = lambda c=c: self._config(c.path, c.expr)  # type: ignore[misc]
        for p in program.params:
            self._exprs["param", p.name] = lambda p=p: self._param(p)  # type: ignore[misc]
        for let in program.lets:
            self._exprs["let", let.name] = lambda e=let.expr: fold(e, self)  # type: ignore[misc]
        self._known: dict[tuple[str, str], Any] = {}
        for p in program.params:
            self.ref(Ref("param", p.name))

    def ref(self, ref: Ref) -> Any:
        key = (ref.scope, ref.name)
        if key not in self._known:
            if key not in self._exprs:
                raise FoldError(f"`{ref.name}` ({ref.scope}) has no value here")
            self._known[key] = self._exprs[key]()
        return self._known[key]

    def var(self, ident: ValueId) -> Any:
        raise FoldError(f"%{ident} has no value here")

    def field(self, ident: ValueId, name: str) -> Any:
        raise FoldError(f"%{ident} has no value here")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        match fn:
            case "given":
                return args[0] in self._given
            case "wants":
                return args[0] in self._wants
            case "last":
                return self._machine.last(*args)
            case "guide":
                return self._guide(tuple(None if arg is ABSENT else arg for arg in args))
            case _:
                raise FoldError(f"there is no built-in `{fn}`")

    def _guide(self, args: tuple[Any, ...]) -> Any:
        """v where there is no branch or its scale is at most 1; a second branch whose scale is at most 1 counts as absent."""
        two = args[2] is None or not isinstance(args[2], int | float)
        if args[1] is None or args[3 if two else 2] <= 1:
            return args[0]
        return self._machine.guide((*args[:2], None, *args[3:]) if two and args[4] <= 1 else args)

    def _config(self, path: str, expr: Expr | None) -> Any:
        try:
            return fold(expr, self) if expr is not None and not path else self._machine.config(path)
        except KeyError:
            if expr is not None:
                return fold(expr, self)
            raise FoldError(f"config `{path}` has no value") from None

    def _param(self, param: Param) -> Any:
        if param.name in self._params:
            value = param_value(param, self._params[param.name])
        elif param.default is not None:
            return fold(param.default, self)
        else:
            raise RequestRefused(f"parameter `{param.name}` is required", param.name)
        low = None if param.low is None else fold(param.low, self)
        high = None if param.high is None else fold(param.high, self)
        if (low is not None and value < low) or (high is not None and value > high):
            raise RequestRefused(f"`{param.name}` must be in {low}..{high}, not {value}", param.name)
        return value


@dataclass(slots=True)
class Frame:
    """One run of a walk or of an arm of a request: implements `mstarc.ir.fold.Scope`.

    roles: for each `together` around, outermost first, its streams and the label of the arm in it that this code belongs to.
    """

    request: RequestScope
    machine: Machine
    walk: str
    arm: str
    roles: tuple[tuple[dict[str, LiveStream], str], ...] = ()
    values: dict[ValueId, Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    iters: dict[str, int] = field(default_factory=dict)
    gathers: list[dict[str, list[Any]]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    _namers: dict[str, ValueId] = field(default_factory=dict)

    def ref(self, ref: Ref) -> Any:
        known = self.dims if ref.scope == "dim" else self.iters
        if ref.scope not in ("dim", "iter"):
            return self.request.ref(ref)
        if ref.name not in known:
            raise FoldError(f"`{ref.name}` ({ref.scope}) has no value here")
        return known[ref.name]

    def var(self, ident: ValueId) -> Any:
        value = self.values[ident]
        return value.value if isinstance(value, ChunkHandle) else value

    def field(self, ident: ValueId, name: str) -> Any:
        value = self.values[ident]
        return getattr(value, name) if isinstance(value, ChunkHandle) else field_of(value, name)

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        return self.request.apply(fn, args)

    def eval(self, expr: Expr) -> Any:
        """The value of an expression. Raises `ExecutionError` that names the walk."""
        try:
            return fold(expr, self)
        except FoldError as error:
            raise ExecutionError(f"{self.walk or 'request'}: {error}") from error

    def bind(self, value: Value | None, found: Any) -> None:
        """Bind a value, and the free dims that its type is the first to name (anew in each iteration)."""
        if value is None:
            return
        self.values[value.id] = found
        self.names[value.id] = value.name
        sizes: dict[str, int] = {}
        bind_dims(value.type, found.value if isinstance(found, ChunkHandle) else found, self.machine, sizes)
        for name, size in sizes.items():
            if self._namers.setdefault(name, value.id) == value.id:
                self.dims[name] = size

    def stream(self, name: str) -> LiveStream | None:
        """The running stream of that name, or None if it has no other end in a running `together`."""
        for streams, _ in reversed(self.roles):
            if name in streams:
                return streams[name]
        return None


def checked_length(found: Any, expr: Expr, what: str, names: Mapping[int, str] | None = None) -> int:
    """The length that an expression gives. Raises `ExecutionError` that names it if there is no such length."""
    if found < 0:
        raise ExecutionError(f"{what}: `{shown(expr, names)}` is {found}, and a length is 0 or more")
    return int(found)


def bind_dims(kind: Type, value: Any, machine: Machine, dims: dict[str, int]) -> None:
    """Give the free dims of a type the lengths that the value has; a dim that is already known keeps its value."""
    if value is ABSENT or value is None:
        return
    match kind:
        case Tensor(dims=symbols) if any(
            isinstance(d, Ref) and d.scope == "dim" and d.name not in dims for d in symbols
        ):
            for symbol, size in zip(symbols, machine.shape(value), strict=False):
                if isinstance(symbol, Ref) and symbol.scope == "dim":
                    dims.setdefault(symbol.name, size)
        case Struct(fields=fields):
            for name, inner in fields:
                bind_dims(inner, field_of(value, name), machine, dims)
