"""What walks and requests have in common: scopes, blocks, calls of externs, and the bookkeeping of SSA values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core
from mstarc.ir.types import Chunk, Expr, Phase, Ref, Scalar, Tensor, Type, Var
from mstarc.passes.lowering.calls import Matcher
from mstarc.passes.lowering.dims import free_dims
from mstarc.passes.lowering.expressions import Expressions, Typed, path_text
from mstarc.passes.lowering.scope import Binding, Names, Values
from mstarc.passes.lowering.symbols import Symbols
from mstarc.source import Span
from mstarc.syntax import ast


class Body:
    """Lowers the statements of one walk or request into blocks of operations."""

    def __init__(self, program: core.Program, symbols: Symbols, report: Collector, title: str) -> None:
        self.program = program
        self.symbols = symbols
        self.report = report
        self.title = title
        self.values = Values()
        self.names = Names()
        self.dims: set[str] = set()
        self.loose: set[str] = set()  # dims that externs decide
        self.depth = 0  # loops around here
        self.ops: list[core.Op] = []
        self.temporary: set[int] = set()  # ids of values that the author did not name
        self.expressions = Expressions(symbols, report, self.lookup, self.call_value)
        self.parallel: list[dict[str, Span]] = []  # names bound by the statements of each enclosing `parallel`
        self.pending: set[str] = set()  # names that a later statement of the block binds

    # ------------------------------------------------------------------------------------------------------------ scopes

    @contextmanager
    def block(self, what: str) -> Iterator[list[core.Op]]:
        """A nested block with names of its own."""
        outer, self.ops = self.ops, []
        self.names.push()
        try:
            yield self.ops
        finally:
            self.names.pop(what)
            self.ops = outer

    def lookup(self, name: ast.Name) -> Typed | None:
        """A value of this scope by name; explains a name that was visible once."""
        binding = self.names.find(name.text)
        if binding is not None:
            binding.used = True
            return Typed(Var(binding.value.id), binding.type, binding.value.phase, name.span)
        if name.text in self.dims:
            return Typed(Ref("dim", name.text), Scalar("int"), "host", name.span)
        if name.text in self.symbols.table:
            return None
        if name.text in self.names.gone:
            self._gone(name, self.names.gone[name.text])
            return self.expressions.poison(name.span)
        if name.text in self.pending:
            code, label = (rules.MC101, "in a circle") if self.parallel else (rules.MC005, "bound only further down")
            message = (
                f"`{name.text}` is used by a statement of `parallel` and bound by another one"
                if self.parallel
                else f"`{name.text}` is used before the statement that binds it"
            )
            self.report.report(
                code,
                message,
                name.span,
                label,
                help="order never makes a back edge: carry it in a loop",
                subject=name.text,
            )
            return self.expressions.poison(name.span)
        return None

    def _gone(self, name: ast.Name, what: str) -> None:
        if what.startswith("loop"):
            self.report.report(
                rules.MC206,
                f"`{name.text}` is bound inside {what} and is not visible after it",
                name.span,
                help=f"carry it (`carry {name.text}`) or `collect {name.text} as {name.text}s`",
                subject=name.text,
            )
        else:
            self.report.report(
                rules.MC301,
                f"`{name.text}` is bound only inside {what}",
                name.span,
                "not bound on the other path",
                subject=name.text,
            )

    def bind(self, name: ast.Name, kind: Type | None, phase: Phase) -> core.Value:
        """A new value for a name, with the checks of single assignment."""
        self._check_rebinding(name)
        value = self.values.make(name.text, kind, phase, name.span)
        self.names.bind(name.text, Binding(value, kind, self.depth))
        self.pending.discard(name.text)
        return value

    def _check_rebinding(self, name: ast.Name) -> None:
        if name.text in self.symbols.table:
            symbol = self.symbols.table[name.text]
            self.report.report(
                rules.MC001,
                f"`{name.text}` is the name of a {symbol.kind}",
                name.span,
                secondary=(Label(symbol.span, "declared here"),),
                subject=name.text,
            )
            return
        for bound in self.parallel:
            if name.text in bound:
                self.report.report(
                    rules.MC302,
                    f"two statements of `parallel` bind `{name.text}`",
                    name.span,
                    secondary=(Label(bound[name.text], "bound here too"),),
                    subject=name.text,
                )
                return
            bound[name.text] = name.span
        old = self.names.find(name.text)
        if old is not None and not self.may_rebind(name.text):
            self.report.report(
                rules.MC003,
                f"`{name.text}` is bound twice",
                name.span,
                "bound again",
                secondary=(Label(old.value.span, "first bound here"),),
                help="give the second value a name of its own, or carry it in a loop",
                subject=name.text,
            )

    def may_rebind(self, name: str) -> bool:
        """Whether the name is carried by the loop whose body this is."""
        return False

    def guarded(self, tree: ast.Guarded) -> None:
        """`statement when cond`: what it binds is optional afterwards."""
        cond = self.expressions.host(tree.cond, "`when`")
        with self.block("`when`") as ops:
            self.statement(tree.stmt)
            bound = dict(self.names.frames[-1])
        phis: list[core.Phi] = []
        for name, inner in bound.items():
            self.names.gone.pop(name, None)
            kind = None if inner.type is None or isinstance(inner.type, Chunk) else replace(inner.type, optional=True)
            result = self.values.make(name, kind, inner.value.phase, inner.value.span)
            self._types[result.id] = kind
            phis.append(core.Phi(inner.value.id, result))
            self.names.bind(name, Binding(result, kind, self.depth))
        self.ops.append(core.When(cond.expr, core.Block(tuple(ops)), tuple(phis), span=tree.span))

    def statement(self, tree: ast.Stmt) -> None:
        """Lower one statement."""
        raise AssertionError("walks and requests have their own statements")

    # ------------------------------------------------------------------------------------------------------------- values

    def call_value(self, tree: ast.Call) -> Typed:
        """A call inside an expression: hoisted, its single result is the value."""
        found = self.call(tree, None)
        if len(found) != 1:
            if found is not FAILED:
                self.report.report(
                    rules.MC004,
                    f"`{path_text(tree.callee)}` gives {len(found)} values, one is due here",
                    tree.span,
                    subject=path_text(tree.callee),
                )
            return self.expressions.poison(tree.span, "device")
        value = found[0]
        return Typed(Var(value.id), self.type_of(value), value.phase, tree.span)

    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        """Lower a call as an operation; binds `targets` (or temporaries) to its results."""
        raise AssertionError("walks and requests have their own calls")

    def type_of(self, value: core.Value) -> Type | None:
        return self._types.get(value.id)

    @property
    def _types(self) -> dict[int, Type | None]:
        if not hasattr(self, "_type_table"):
            self._type_table: dict[int, Type | None] = {}
        return self._type_table

    def results(
        self, ports: Sequence[tuple[str, Type | None]], targets: Sequence[ast.Name] | None, phase: Phase, tree: ast.Call
    ) -> list[core.Value | None] | None:
        """Values for the results of a call: named by the targets, or temporaries named after the ports."""
        if targets is None:
            made: list[core.Value | None] = []
            for name, kind in ports:
                value = self.values.make(name, kind, phase, tree.span)
                self.temporary.add(value.id)
                self._types[value.id] = kind
                made.append(value)
            return made
        if len(targets) != len(ports):
            self.report.report(
                rules.MC004,
                f"`{path_text(tree.callee)}` gives {len(ports)} values, {len(targets)} names stand for them",
                tree.span,
                subject=path_text(tree.callee),
            )
            for target in targets:
                if target.text != "_":
                    self._types[self.bind(target, None, phase).id] = None
            return None
        found: list[core.Value | None] = []
        for target, (_, kind) in zip(targets, ports, strict=True):
            if target.text == "_":
                found.append(None)
                continue
            value = self.bind(target, kind, phase)
            self._types[value.id] = kind
            found.append(value)
        return found

    def extern(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        """A call of typed host Python; its results are host values."""
        name = path_text(tree.callee)
        decl = next((extern for extern in self.program.externs if extern.name == name), None)
        if decl is None:
            return self.fail(targets, "host")
        matcher = Matcher(self.symbols, self.report, name, tree.span, self.loose)
        args = self.arguments(matcher, decl.params, tree)
        kinds = [
            (port.name if port.name != "result" else name, self.fresh(matcher, port.type, loose=True))
            for port in decl.results
        ]
        results = self.results(kinds, targets, "host", tree)
        if args is None or results is None:
            return FAILED if targets is None else ()
        plain = tuple(arg for arg in args if arg is not None)
        self.ops.append(core.Extern(name, plain, tuple(results), span=tree.span))
        return [value for value in results if value is not None]

    def arguments(self, matcher: Matcher, ports: Sequence[core.Port], tree: ast.Call) -> list[Expr | None] | None:
        """Lower and check the arguments of a call against its ports, in order."""
        if tree.access and not isinstance(self, AccessAware):
            self.report.report(rules.MC507, f"`{matcher.callee}` uses no context", tree.access[0].span)
        arranged = matcher.arrange(ports, tree.args)
        if arranged is None:
            for arg in tree.args:  # so that what they name counts as used, and errors inside are found
                self.expressions.lower(arg.value)
            return None
        args: list[Expr | None] = []
        for port, written in zip(ports, arranged, strict=True):
            if written is None:
                args.append(None)
                continue
            typed = self.expressions.lower(written)
            matcher.check(port, typed)
            args.append(typed.expr)
        return args

    def fresh(self, matcher: Matcher, kind: Type, loose: bool = False) -> Type:
        """A result type in this scope's dims; what only the call knows becomes a new free dim here."""
        for name in free_dims(kind):
            if name not in matcher.bound:
                new, count = name, 1
                while new in self.dims:
                    count += 1
                    new = f"{name}_{count}"
                self.dims.add(new)
                if loose:
                    self.loose.add(new)
                matcher.bound[name] = Ref("dim", new)
        return matcher.result(kind)

    def fail(self, targets: Sequence[ast.Name] | None, phase: Phase) -> Sequence[core.Value]:
        """After an error in a call: bind its targets to unknown values, so that nothing follows from it."""
        if targets is None:
            return FAILED
        for target in targets:
            if target.text != "_":
                self._types[self.bind(target, None, phase).id] = None
        return ()

    def assign_value(self, tree: ast.Assign, value: Typed) -> None:
        """`name = expression`."""
        if len(tree.targets) != 1:
            self.report.report(rules.MC004, f"one value is bound to {len(tree.targets)} names", tree.span)
            return
        name = tree.targets[0]
        kind = value.type.item if isinstance(value.type, Chunk) else value.type
        made = self.bind(name, kind, value.phase)
        self._types[made.id] = kind
        self.ops.append(core.Compute(made, value.expr, span=tree.span))

    def type_or_scalar(self, kind: Type | None) -> Type:
        return kind if kind is not None else Tensor("f32")


class AccessAware:
    """Marks bodies whose calls may have access clauses."""


class _Failed(tuple[core.Value, ...]):
    """The results of a call that could not be lowered; the error has been reported."""


FAILED = _Failed()
