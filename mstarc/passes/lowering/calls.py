"""Matching a call's arguments against ports: arity, types, dims (unified per call), phases and contexts."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core
from mstarc.ir.types import Chunk, Enum, Expr, Media, Parts, Ref, Scalar, Struct, Tensor, Type
from mstarc.passes.lowering.dims import free_dims, may_equal, substitute, type_text
from mstarc.passes.lowering.expressions import Typed
from mstarc.passes.lowering.symbols import Symbols
from mstarc.source import Span
from mstarc.syntax import ast


class Matcher:
    """Matches arguments of one call. `bound` maps the callee's free dims to the caller's."""

    def __init__(
        self, symbols: Symbols, report: Collector, callee: str, span: Span, loose: AbstractSet[str] = frozenset()
    ) -> None:
        self.symbols = symbols
        self.report = report
        self.callee = callee
        self.span = span
        self.loose = loose  # dims of the caller that host code decides: they may equal anything
        self.bound: dict[str, Expr] = {}

    def arrange(self, ports: Sequence[core.Port], args: Sequence[ast.Arg]) -> list[ast.Expr | None] | None:
        """One tree per port, None for an optional port left out; None (and a finding) if they do not fit."""
        placed: dict[str, ast.Expr] = {}
        names = [port.name for port in ports]
        for k, arg in enumerate(args):
            value = arg.value
            if arg.name is not None:
                if arg.name.text not in names:
                    self.symbols.unknown(arg.name, "parameter", names, f"`{self.callee}`")
                    return None
                name = arg.name.text
            elif k < len(names):
                name = names[k]
            else:
                self._wrong_count(ports, len(args))
                return None
            if name in placed:
                self.report.report(rules.MC004, f"`{self.callee}` is given `{name}` twice", value.span, subject=name)
                return None
            placed[name] = value
        missing = [port.name for port in ports if port.name not in placed and not _optional(port.type)]
        if missing:
            self._wrong_count(ports, len(args), missing)
            return None
        return [placed.get(name) for name in names]

    def _wrong_count(self, ports: Sequence[core.Port], given: int, missing: Sequence[str] = ()) -> None:
        signature = ", ".join(f"{port.name}: {type_text(port.type)}" for port in ports)
        lacks = f": {', '.join(f'`{name}`' for name in missing)} is missing" if missing else ""
        self.report.report(
            rules.MC004,
            f"`{self.callee}` takes {len(ports)} arguments, {given} are given{lacks}",
            self.span,
            notes=(f"it is declared as {self.callee}({signature})",),
            help="several contexts stand in parentheses: `writes (a, b)`" if given > len(ports) else None,
            subject=self.callee,
        )

    def check(self, port: core.Port, arg: Typed) -> None:
        """One argument against its port: phase, optionality, type."""
        if port.host and not arg.host:
            self.report.report(
                rules.MC305, f"`{port.name}` of `{self.callee}` is a host parameter", arg.span, "a device value"
            )
            return
        if arg.optional and not _optional(port.type):
            self.report.report(
                rules.MC301,
                f"`{port.name}` of `{self.callee}` needs a value, and this one may be absent",
                arg.span,
                "bound under `when` or after the end of a stream",
                help="make the parameter optional (`?`), or bind the value on every path",
            )
            return
        if not self._fits(port.type, arg.type):
            self.report.report(
                rules.MC007,
                f"`{port.name}` of `{self.callee}` is {type_text(self._shown(port.type))}, the argument is {type_text(arg.type)}",
                arg.span,
                f"this is {type_text(arg.type)}",
                secondary=(Label(self.span, "in this call"),) if self.span != arg.span else (),
            )

    def _shown(self, kind: Type) -> Type:
        return self.result(kind) if isinstance(kind, Tensor) else kind

    def _fits(self, wanted: Type, given: Type | None) -> bool:
        match wanted, given:
            case _, None:
                return True
            case Tensor(), Chunk(item=item):
                return self._chunk_fits(wanted, item)
            case Tensor(), Tensor():
                return self._tensor_fits(wanted, given)
            case Tensor(dims=()), Scalar(name):
                return name in ("int", "float", "bool")
            case Tensor(), _:
                return False
            case Scalar(name), Scalar(other):
                return name == other or (name == "float" and other == "int")
            case Scalar("text"), Enum():
                return True
            case Scalar("int"), Tensor(dtype, ()):
                return dtype in ("i64", "i32")
            case Scalar("float"), Tensor(dtype, ()):
                return dtype in ("f32", "f16", "bf16", "i64", "i32")
            case Scalar("bool"), Tensor("bool", ()):
                return True
            case Struct(name), Struct(other):
                return name == other
            case Parts(members), Parts(others):
                return set(others) <= set(members)
            case Media(modality), Media(other):
                return modality == other
            case Enum(members), Enum(others):
                return set(others) <= set(members)
            case _:
                return False

    def _chunk_fits(self, wanted: Tensor, item: Type) -> bool:
        if not isinstance(item, Tensor) or wanted.dtype != item.dtype:
            return False
        if len(wanted.dims) == len(item.dims) + 1:
            self._dim_fits(wanted.dims[0], Ref("dim", "chunk"))
            return all(self._dim_fits(a, b) for a, b in zip(wanted.dims[1:], item.dims, strict=True))
        return len(wanted.dims) == len(item.dims) and all(map(self._dim_fits, wanted.dims, item.dims))

    def _tensor_fits(self, wanted: Tensor, given: Tensor) -> bool:
        if wanted.dtype != given.dtype and not _floats(wanted, given):
            return False
        return len(wanted.dims) == len(given.dims) and all(map(self._dim_fits, wanted.dims, given.dims))

    def _dim_fits(self, wanted: Expr, given: Expr) -> bool:
        """Unify one dim: a free dim of the callee takes the caller's, anything else must be equal to it."""
        if isinstance(wanted, Ref) and wanted.scope == "dim":
            first = self.bound.setdefault(wanted.name, given)
            return self._may_equal(first, given)
        here = substitute(wanted, self.bound)
        if any(name not in self.bound for name in free_dims(Tensor("i64", (wanted,)))):
            return True  # bound by another argument, or solved only at run time
        return (isinstance(given, Ref) and given.name == "chunk") or self._may_equal(here, given)

    def _may_equal(self, a: Expr, b: Expr) -> bool:
        free = free_dims(Tensor("i64", (a, b)))
        return may_equal(a, b) or any(name in self.loose for name in free)

    def result(self, kind: Type) -> Type:
        """A result's type in the caller's dims."""
        if not isinstance(kind, Tensor):
            return kind
        return replace(kind, dims=tuple(substitute(dim, self.bound) for dim in kind.dims))


def _optional(kind: Type) -> bool:
    return bool(getattr(kind, "optional", False))


def _floats(a: Tensor, b: Tensor) -> bool:
    """f32, bf16 and f16 pass for each other: engines convert at the port."""
    floating = ("f32", "bf16", "f16")
    return a.dtype in floating and b.dtype in floating
