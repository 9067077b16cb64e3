"""The parse tree of one declaration to the syntax tree. Takes nodes whose positions are byte offsets; gives `ast` nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from mstarc.source import SourceFile, Span
from mstarc.syntax import ast
from mstarc.syntax.automaton import Node, Part
from mstarc.syntax.tokens import Token

DEEPEST = 64


class TooDeep(Exception):
    """The tree is nested deeper than `DEEPEST`; `span` is where."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


class NumberTooLarge(Exception):
    """A number that no machine type holds."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


def _text(part: Part) -> str:
    assert isinstance(part, Token)
    return part.text


class Builder:
    """Builds declarations of one file."""

    def __init__(self, source: SourceFile) -> None:
        self._file = source.path
        self._data = source.text.encode("utf-8")
        self._depth = 0

    def decl(self, tree: Node) -> ast.Decl:
        """One declaration. Raises TooDeep or NumberTooLarge."""
        return cast(ast.Decl, self._visit(tree))

    # ---------------------------------------------------------------------------------------------------------- plumbing

    def _visit(self, tree: Node) -> Any:
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise TooDeep(self._span(tree))
            return getattr(self, f"_{tree.rule}")(tree.children, self._span(tree))
        finally:
            self._depth -= 1

    def _span(self, part: Node | Token) -> Span:
        return Span(self._file, part.start, part.end)

    def _name(self, part: Part) -> ast.Name:
        assert isinstance(part, Token)
        return ast.Name(part.text, self._span(part))

    def _name_or_none(self, part: Part) -> ast.Name | None:
        return None if part is None else self._name(part)

    def _maybe(self, part: Part) -> Any:
        return None if part is None else self._visit(cast(Node, part))

    def _expr(self, part: Part) -> ast.Expr:
        return cast(ast.Expr, self._visit(cast(Node, part)))

    def _expr_or_none(self, part: Part) -> ast.Expr | None:
        return None if part is None else self._expr(part)

    def _all(self, parts: Iterable[Part]) -> tuple[Any, ...]:
        return tuple(self._visit(part) for part in parts if isinstance(part, Node))

    def _listed(self, part: Part) -> tuple[Any, ...]:
        """The children of an optional list rule (`args`, `params`)."""
        return () if part is None else cast("tuple[Any, ...]", self._visit(cast(Node, part)))

    # ------------------------------------------------------------------------------------------------------ declarations

    def _config(self, c: list[Part], span: Span) -> ast.Config:
        return ast.Config(self._all(c), span)

    def _entry(self, c: list[Part], span: Span) -> ast.Entry:
        return ast.Entry(self._name(c[0]), self._expr(c[1]), span)

    def _param(self, c: list[Part], span: Span) -> ast.Param:
        low, high, default = (self._expr_or_none(x) for x in c[2:5])
        return ast.Param(self._name(c[0]), self._maybe(c[1]), low, high, default, span)

    def _let(self, c: list[Part], span: Span) -> ast.Let:
        return ast.Let(self._listed(c[0]), self._expr(c[1]), span)

    def _type_(self, c: list[Part], span: Span) -> ast.TypeDecl:
        return ast.TypeDecl(self._name(c[0]), self._listed(c[1]), span)

    def _extern(self, c: list[Part], span: Span) -> ast.Extern:
        return ast.Extern(self._name(c[0]), self._listed(c[1]), self._maybe(c[2]), span)

    def _cache(self, c: list[Part], span: Span) -> ast.Cache:
        return ast.Cache(self._name(c[0]), self._name(c[1]), self._listed(c[2]), span)

    def _context(self, c: list[Part], span: Span) -> ast.Context:
        return ast.Context(
            self._listed(c[0]), self._name(c[1]), self._expr_or_none(c[2]), self._expr_or_none(c[3]), span
        )

    def _sampler(self, c: list[Part], span: Span) -> ast.Sampler:
        return ast.Sampler(self._name(c[0]), self._all(c[1:]), span)

    def _setting(self, c: list[Part], span: Span) -> ast.Setting:
        value, high = self._expr_or_none(c[1]), self._expr_or_none(c[2])
        return ast.Setting(self._name(c[0]), value, high, self._maybe(c[3]), self._maybe(c[4]), span)

    def _over(self, c: list[Part], span: Span) -> ast.Name:
        return self._name(c[0])

    def _except(self, c: list[Part], span: Span) -> ast.Expr:
        return self._expr(c[0])

    def _node(self, c: list[Part], span: Span) -> ast.Node:
        kind = cast(Node, c[1])
        parts = self._all(c[3:])
        return ast.Node(
            self._name(c[0]),
            "transformer" if kind.rule == "transformer" else "stateless",
            self._name_or_none(kind.children[0]),
            self._maybe(c[2]),
            tuple(p for p in parts if isinstance(p, ast.Op)),
            tuple(p for p in parts if isinstance(p, ast.State)),
            span,
        )

    def _weights(self, c: list[Part], span: Span) -> ast.Name:
        return self._name(c[0])

    def _state(self, c: list[Part], span: Span) -> ast.State:
        return ast.State(self._name(c[0]), self._maybe(c[1]), self._expr(c[2]), span)

    def _op(self, c: list[Part], span: Span) -> ast.Op:
        return ast.Op(self._name(c[0]), self._listed(c[1]), self._listed(c[2]), self._listed(c[3]), span)

    def _attrs(self, c: list[Part], span: Span) -> tuple[ast.Attr, ...]:
        return self._all(c)

    def _attr(self, word: str, value: Part, exprs: Iterable[tuple[str, Part]], span: Span) -> ast.Attr:
        found = tuple((name, self._expr(part)) for name, part in exprs if part is not None)
        return ast.Attr(word, self._name_or_none(value), found, span)

    def _attend(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("attend", c[0], (), span)

    def _positions(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("positions", c[0], (("at", c[1] if len(c) == 3 else None), ("advance", c[-1])), span)

    def _takes(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("takes", None, (("takes", c[0]),), span)

    def _frozen(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("frozen", None, (), span)

    def _cross(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("cross", None, (), span)

    def _random(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("random", None, (), span)

    def _samples(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("samples", c[0], (), span)

    def _batch(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("batch", c[0], (("max", c[1]),), span)

    def _graph(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("graph", c[0], (("low", c[1]), ("high", c[2])), span)

    def _async_(self, c: list[Part], span: Span) -> ast.Attr:
        return self._attr("async", c[0], (), span)

    def _stream(self, c: list[Part], span: Span) -> ast.Stream:
        at_end, pad = self._maybe(c[5]) or (None, None)
        return ast.Stream(
            name=self._name(c[0]),
            type=self._maybe(c[1]),
            where=self._maybe(c[2]),
            policy=self._name(c[3]),
            args=self._listed(c[4]),
            at_end=at_end,
            pad=pad,
            after_end=self._maybe(c[6]),
            overlap=self._maybe(c[7]),
            capacity=self._expr(c[8]),
            span=span,
        )

    def _where(self, c: list[Part], span: Span) -> ast.Expr:
        return self._expr(c[0])

    def _at_end(self, c: list[Part], span: Span) -> tuple[ast.Name, ast.Name | None]:
        return self._name(c[0]), self._name_or_none(c[1])

    def _after_end(self, c: list[Part], span: Span) -> ast.Name:
        return self._name(c[0])

    def _overlap(self, c: list[Part], span: Span) -> ast.Name:
        return self._name(c[0])

    def _walk(self, c: list[Part], span: Span) -> ast.Walk:
        return ast.Walk(self._name(c[0]), self._listed(c[1]), self._listed(c[2]), self._maybe(c[3]), span)

    def _request(self, c: list[Part], span: Span) -> ast.Request:
        return ast.Request(self._name(c[0]), self._listed(c[1]), self._all(c[2:-1]), self._maybe(c[-1]), span)

    def _out(self, c: list[Part], span: Span) -> ast.Out:
        return ast.Out(self._name(c[0]), c[1] is not None, span)

    # ------------------------------------------------------------------------------------------------------------- types

    def _params(self, c: list[Part], span: Span) -> tuple[ast.PortDef, ...]:
        return self._all(c)

    def _pdef(self, c: list[Part], span: Span) -> ast.PortDef:
        return ast.PortDef(self._name(c[0]), self._maybe(c[2]), c[1] is not None, span)

    def _type(self, c: list[Part], span: Span) -> ast.NamedType:
        dims = self._all(c[1:-1])
        return ast.NamedType(self._name(c[0]), dims or None, c[-1] is not None, span)

    def _list_type(self, c: list[Part], span: Span) -> ast.ListType:
        return ast.ListType(tuple(self._name(x) for x in c[:-1]), c[-1] is not None, span)

    def _enum_type(self, c: list[Part], span: Span) -> ast.EnumType:
        return ast.EnumType(self._listed(c[0]), c[1] is not None, span)

    def _names(self, c: list[Part], span: Span) -> tuple[ast.Name, ...]:
        return tuple(self._name(x) for x in c)

    # -------------------------------------------------------------------------------------------------------- statements

    def _block(self, c: list[Part], span: Span) -> ast.Block:
        return ast.Block(self._all(c), span)

    def _assign(self, c: list[Part], span: Span) -> ast.Assign:
        return ast.Assign(self._listed(c[0]), self._expr(c[1]), span)

    def _do(self, c: list[Part], span: Span) -> ast.Do:
        return ast.Do(self._maybe(c[0]), span)

    def _emit(self, c: list[Part], span: Span) -> ast.Emit:
        return ast.Emit(self._expr(c[0]), self._name(c[1]), self._listed(c[2]), span)

    def _send(self, c: list[Part], span: Span) -> ast.Send:
        return ast.Send(self._expr(c[0]), self._name(c[1]), span)

    def _collect(self, c: list[Part], span: Span) -> ast.Collect:
        return ast.Collect(self._expr(c[0]), self._name(c[1]), span)

    def _fork(self, c: list[Part], span: Span) -> ast.Fork:
        return ast.Fork(self._name(c[0]), self._name(c[1]), span)

    def _drop(self, c: list[Part], span: Span) -> ast.Drop:
        return ast.Drop(self._listed(c[0]), span)

    def _require(self, c: list[Part], span: Span) -> ast.Require:
        cond = cast(Node, c[0])
        text = self._data[cond.start : cond.end].decode("utf-8")
        return ast.Require(self._expr(cond), " ".join(text.split()), span)

    def _guarded(self, c: list[Part], span: Span) -> ast.Guarded:
        return ast.Guarded(self._maybe(c[0]), self._expr(c[1]), span)

    def _stop(self, c: list[Part], span: Span) -> ast.Stop:
        return ast.Stop(self._expr(c[0]), span)

    def _loop(self, c: list[Part], span: Span) -> ast.Loop:
        kind: Literal["times", "max"] = "times" if _text(c[1]) == "times" else "max"
        bound, body = self._expr(c[2]), self._maybe(c[-1])
        return ast.Loop(self._name(c[0]), kind, bound, self._all(c[3:-1]), body, span)

    def _carry(self, c: list[Part], span: Span) -> ast.Carry:
        return ast.Carry(self._name(c[0]), self._expr_or_none(c[1]), span)

    def _for_(self, c: list[Part], span: Span) -> ast.For:
        parts = self._all(c[1:])
        cases = tuple(p for p in parts if isinstance(p, ast.Case))
        body = None if cases else cast(ast.Block, parts[-1])
        over = parts[: len(parts) - max(1, len(cases))]
        return ast.For(self._listed(c[0]), over, body, cases, span)

    def _case(self, c: list[Part], span: Span) -> ast.Case:
        return ast.Case(self._name(c[0]), self._maybe(c[1]), span)

    def _parallel(self, c: list[Part], span: Span) -> ast.Parallel:
        return ast.Parallel(self._maybe(c[0]), span)

    def _together(self, c: list[Part], span: Span) -> ast.Together:
        return ast.Together(self._all(c), span)

    def _branch(self, c: list[Part], span: Span) -> ast.Branch:
        body = self._maybe(c[1])
        block = body if isinstance(body, ast.Block) else ast.Block((body,), body.span)
        return ast.Branch(self._name_or_none(c[0]), block, span)

    def _if_(self, c: list[Part], span: Span) -> ast.If:
        return ast.If(self._expr(c[0]), self._maybe(c[1]), self._maybe(c[2]), span)

    # ------------------------------------------------------------------------------------------------------- expressions

    def _ifx(self, c: list[Part], span: Span) -> ast.IfThen:
        return ast.IfThen(self._expr(c[0]), self._expr(c[1]), self._expr(c[2]), span)

    def _chain(self, c: list[Part], span: Span) -> ast.Expr:
        """a op b op c ..., to the left. Its depth is the number of operators."""
        if self._depth + len(c) // 2 > DEEPEST:
            raise TooDeep(span)
        found = self._expr(c[0])
        for op, right in zip(c[1::2], c[2::2], strict=True):
            operand = self._expr(right)
            found = ast.Binary(_text(op), found, operand, found.span.to(operand.span))
        return found

    _or_ = _and_ = _cmp = _sum = _term = _chain

    def _not_(self, c: list[Part], span: Span) -> ast.Unary:
        return ast.Unary("not", self._expr(c[0]), span)

    def _neg(self, c: list[Part], span: Span) -> ast.Unary:
        return ast.Unary("-", self._expr(c[0]), span)

    def _group(self, c: list[Part], span: Span) -> ast.Expr:
        return self._expr(c[0])

    def _number(self, c: list[Part], span: Span) -> ast.Number:
        text = _text(c[0]).replace("_", "")
        whole = text.isdigit()
        if len(text) > 40 or abs(float(text)) > 1e300 or (whole and int(text) >= 1 << 63):
            raise NumberTooLarge(span)
        return ast.Number(int(text) if whole else float(text), span)

    def _string(self, c: list[Part], span: Span) -> ast.Text:
        return ast.Text(_text(c[0])[1:-1], span)

    def _true(self, c: list[Part], span: Span) -> ast.Bool:
        return ast.Bool(True, span)

    def _false(self, c: list[Part], span: Span) -> ast.Bool:
        return ast.Bool(False, span)

    def _path(self, c: list[Part], span: Span) -> ast.Path:
        return ast.Path(tuple(self._name(x) for x in c), span)

    def _list(self, c: list[Part], span: Span) -> ast.ListOf:
        return ast.ListOf(self._listed(c[0]), span)

    def _sub(self, c: list[Part], span: Span) -> ast.Sub:
        return ast.Sub(self._expr(c[0]), self._all(c[1:]), span)

    def _slice(self, c: list[Part], span: Span) -> ast.Slice:
        return ast.Slice(self._expr_or_none(c[0]), self._expr_or_none(c[1]), span)

    def _call(self, c: list[Part], span: Span) -> ast.Call:
        return ast.Call(self._maybe(c[0]), self._listed(c[1]), self._all(c[2:]), span)

    def _access(self, c: list[Part], span: Span) -> ast.Access:
        names = (self._name(c[1]),) if isinstance(c[1], Token) else self._listed(c[1])
        return ast.Access("reads" if _text(c[0]) == "reads" else "writes", names, span)

    def _args(self, c: list[Part], span: Span) -> tuple[ast.Arg, ...]:
        return tuple(self._arg(part) for part in c if isinstance(part, Node))

    def _arg(self, part: Node) -> ast.Arg:
        if part.rule == "kwarg":
            name = self._name(part.children[0])
            value = self._expr(part.children[1])
            return ast.Arg(value, name, self._span(part))
        value = self._expr(part)
        return ast.Arg(value, None, value.span)
