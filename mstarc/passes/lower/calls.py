"""Matching the arguments of one call against ports: arity, types, dims (unified per call), phases, absence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Label
from mstarc.ir import declarations
from mstarc.ir.types import Enum, Expr, Media, Parts, Scalar, Struct, Tensor, Type
from mstarc.passes.lower.dims import Dims, map_dims, substituted
from mstarc.passes.lower.expressions import Expressions
from mstarc.passes.lower.typed import FLOATS, INTS, Typed, content, is_optional, type_text
from mstarc.source import Span
from mstarc.syntax import ast

_ONCE = "pass each parameter once, in order or by name"


class Matcher:
    """Matches arguments of one call of `callee`. Its free dims become open dims of the caller, one each a call."""

    def __init__(self, expressions: Expressions, callee: str, span: Span) -> None:
        self._symbols = expressions.symbols
        self._report = expressions.report
        self._dims: Dims = expressions.scope.dims
        self._callee = callee
        self._span = span
        self._bound: dict[str, Expr] = {}

    # -------------------------------------------------------------------------------------------------------------- arity

    def arrange(
        self, ports: Sequence[declarations.Port], args: Sequence[ast.Arg], all_due: bool = False
    ) -> list[ast.Expr | None] | None:
        """One tree per port, None for an optional port left out (unless all are due); None, and MC004, if they do not fit."""
        placed: dict[str, ast.Expr] = {}
        names = [port.name for port in ports]
        for k, arg in enumerate(args):
            if arg.name is not None:
                if arg.name.text not in names:
                    self._symbols.unknown(arg.name, "parameter", names, f"`{self._callee}`")
                    return None
                name = arg.name.text
            elif k < len(names):
                name = names[k]
            else:
                self._wrong_count(ports, args)
                return None
            if name in placed:
                message = f"`{self._callee}` is given `{name}` twice"
                self._report.report(rules.MC004, message, arg.span, subject=name, help=_ONCE)
                return None
            placed[name] = arg.value
        missing = [port.name for port in ports if port.name not in placed and (all_due or not is_optional(port.type))]
        if missing:
            self._wrong_count(ports, args, missing)
            return None
        return [placed.get(name) for name in names]

    def _wrong_count(
        self, ports: Sequence[declarations.Port], args: Sequence[ast.Arg], missing: Sequence[str] = ()
    ) -> None:
        given = len(args)
        split = given > len(ports) and any(isinstance(arg.value, ast.Call) and arg.value.access for arg in args)
        signature = ", ".join(f"{port.name}: {'host ' if port.host else ''}{type_text(port.type)}" for port in ports)
        lacks = f": {', '.join(f'`{name}`' for name in missing)} is missing" if missing else ""
        are = "is" if given == 1 else "are"
        self._report.report(
            rules.MC004,
            f"`{self._callee}` takes {_many(len(ports), 'argument')}, {given} {are} given{lacks}",
            self._span,
            notes=(f"it is declared as {self._callee}({signature})",),
            help="several contexts stand in parentheses: `writes (a, b)`" if split else _ONCE,
            subject=self._callee,
        )

    # --------------------------------------------------------------------------------------------------------- one argument

    def check(self, port: declarations.Port, arg: Typed) -> None:
        """One argument against its port: phase, absence, type. An argument without a type has had its error."""
        if arg.type is None:
            return
        if port.host and not arg.host:
            message = f"`{port.name}` of `{self._callee}` is a host parameter"
            self._report.report(rules.MC305, message, arg.span, "a device value")
            return
        if arg.optional and not is_optional(port.type):
            self._report.report(
                rules.MC301,
                f"`{port.name}` of `{self._callee}` needs a value, and this one may be absent",
                arg.span,
                "bound under `when`, optional, or after the end of a stream",
                help="make the parameter optional (`?`), or bind the value on every path",
            )
            return
        due = self.instance(port.type)
        host_fits = True
        if port.host and port.name in self._bound:
            host_fits = self._dims.unify(self._bound[port.name], arg.expr)
        elif port.host:
            self._bound[port.name] = arg.expr
        if self._fits(due, content(arg.type)) and host_fits:
            return
        self._report.report(
            rules.MC007,
            f"`{port.name}` of `{self._callee}` is {type_text(port.type)}, the argument is {self._text(arg.type)}{self._dims.why()}",
            arg.span,
            f"this is {self._text(arg.type)}",
            secondary=(Label(self._span, "in this call"),) if self._span != arg.span else (),
        )

    def accept(self, name: str, due: Type, value: Typed) -> None:
        """A walk's result against its declared type, whose dims are the walk's own."""
        if value.optional and not is_optional(due):
            message = f"the result `{name}` of walk `{self._callee}` may be absent"
            help_text = "declare it optional (`?`), or bind it on every path"
            self._report.report(rules.MC301, message, self._span, help=help_text, subject=name)
        elif value.type is not None and not self._fits(due, content(value.type)):
            declared = f"the result `{name}` of walk `{self._callee}` is declared {type_text(due)}"
            message = f"{declared} and bound as {self._text(value.type)}{self._dims.why()}"
            self._report.report(rules.MC007, message, self._span, subject=name)

    def _text(self, kind: Type) -> str:
        return type_text(self._dims.resolved(kind))

    def _fits(self, due: Type, given: Type | None) -> bool:
        """Whether a value of the type `given` can be passed where `due` is declared; adds the equations of their dims."""
        match due, given:
            case Tensor(), Tensor():
                alike = due.dtype == given.dtype or (due.dtype in FLOATS and given.dtype in FLOATS)
                return alike and self._dims.same(due, given)
            case Tensor(dtype, ()), Scalar(name):
                return name in _HOLDS.get(dtype, ())
            case Scalar("text"), Enum():
                return True
            case Scalar(name), Scalar(other):
                return name == other or (name == "float" and other == "int")
            case Scalar(name), Tensor(dtype, ()):
                return dtype in _READS.get(name, ())
            case Struct(name), Struct(other):
                return name == other and self._dims.same(due, given)
            case (Parts(members), Parts(others)) | (Enum(members), Enum(others)):
                return set(others) <= set(members)
            case Media(modality), Media(other):
                return modality == other
            case _:
                return False

    # --------------------------------------------------------------------------------------------------------------- dims

    def instance(self, kind: Type) -> Type:
        """A type of the callee in the caller's dims."""
        return substituted(kind, self._dim)

    def _dim(self, name: str) -> Expr:
        if name not in self._bound:
            self._bound[name] = self._dims.fresh(name.split("#")[0])
        return self._bound[name]


#: what a tensor without dims can be made from, and what a host parameter can be read from
_HOLDS = dict.fromkeys(FLOATS, ("int", "float")) | dict.fromkeys(INTS, ("int",)) | {"bool": ("bool",)}
_READS = {"int": INTS, "float": (*FLOATS, *INTS), "bool": ("bool",)}


def without_vars(kind: Type, hidden: Callable[[Expr], bool], dims: Dims) -> Type:
    """The type with open dims where a dim reads a value that is hidden at the place of use."""
    return map_dims(kind, lambda dim: dims.fresh("n") if hidden(dims.resolve(dim)) else dim)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
