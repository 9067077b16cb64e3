"""What walks and requests have in common: scopes, blocks, guards, calls of externs, and the bookkeeping of SSA values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core, declarations
from mstarc.ir.types import Expr, Phase, Ref, Type, Var
from mstarc.passes.lower.calls import Matcher
from mstarc.passes.lower.declarations import Declarations
from mstarc.passes.lower.dims import Dims
from mstarc.passes.lower.expressions import Expressions, path_text
from mstarc.passes.lower.order import Place
from mstarc.passes.lower.scope import Binding, Names, Values
from mstarc.passes.lower.symbols import BUILTINS, Symbols
from mstarc.passes.lower.typed import INT, Typed, as_optional, content, poison
from mstarc.source import Span
from mstarc.syntax import ast


class Body(ABC):
    """Lowers the statements of one walk or request into blocks of operations. It is the scope of their expressions."""

    def __init__(self, program: core.Program, symbols: Symbols, declarations: Declarations, report: Collector) -> None:
        self.program = program
        self.symbols = symbols
        self.declarations = declarations
        self.report = report
        self.dims = Dims(declarations.known)
        self.values = Values()
        self.names = Names()
        self.depth = 0  # loop bodies around here
        self.ops: list[core.Op] = []
        self.expressions = Expressions(symbols, report, self)
        self.places: list[Place] = []
        self.parallel: list[dict[str, Span]] = []  # names bound by the statements of each `parallel` around here

    # ------------------------------------------------------------------------------------------------------------- blocks

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

    def statements(self, block: ast.Block, parallel: bool = False) -> None:
        """The statements of a block, in order."""
        place = Place(block.stmts, parallel)
        self.places.append(place)
        for place.at, statement in enumerate(block.stmts):
            self.statement(statement)
        self.places.pop()

    @abstractmethod
    def statement(self, tree: ast.Stmt) -> None:
        """One statement, onto `self.ops`."""

    def guarded(self, tree: ast.Guarded) -> None:
        """`statement when condition`: what it binds may be absent afterwards."""
        cond = self.expressions.condition(tree.cond, "`when`")
        with self.block("`when`") as ops:
            self.statement(tree.stmt)
            bound = dict(self.names.frames[-1])
        phis: list[core.Phi] = []
        for name, inner in bound.items():
            kind = as_optional(content(self.values.type_of(inner.value)))
            result = self.values.make(name, kind, inner.value.phase, inner.value.span)
            phis.append(core.Phi(inner.value.id, result))
            self.names.bind(name, Binding(result, self.depth))
        self.ops.append(core.When(cond.expr, core.Block(tuple(ops)), tuple(phis), span=tree.span))

    # -------------------------------------------------------------------------------------------------------------- names

    def lookup(self, name: ast.Name) -> Typed | None:
        """A value of this scope by name; explains a name that was or will be one."""
        binding = self.names.find(name.text)
        if binding is not None:
            value = binding.value
            return Typed(Var(value.id), self.values.type_of(value), value.phase, name.span)
        if name.text in self.dims.declared:
            return Typed(Ref("dim", name.text), INT, "host", name.span)
        if name.text in self.symbols.table:
            return None
        if name.text in self.names.gone:
            self._gone(name, self.names.gone[name.text])
            return poison(name.span)
        for place in reversed(self.places):
            binder = place.binds_later(name.text)
            if binder is not None:
                self._too_early(name, place, binder)
                return poison(name.span)
        return None

    def visible_names(self) -> list[str]:
        """Names that a misspelt one may mean."""
        return self.names.visible()

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
                "not bound on every path to here",
                help=f"use `{name.text}` inside: what is bound there is not visible after it",
                subject=name.text,
            )

    def _too_early(self, name: ast.Name, place: Place, binder: ast.Stmt) -> None:
        here = place.stmts[place.at]
        if place.parallel and binder is not here and place.in_circle(binder):
            self.report.report(
                rules.MC101,
                f"`{name.text}` needs a statement of `parallel` that needs this one",
                name.span,
                "in a circle",
                secondary=(Label(binder.span, f"`{name.text}` is bound here"),),
                help="only a loop's `carry` may close a circle",
                subject=name.text,
            )
            return
        self.report.report(
            rules.MC005,
            f"`{name.text}` is used before the statement that binds it",
            name.span,
            "not bound yet",
            secondary=(Label(binder.span, "bound here"),) if binder is not here else (),
            help="move the statement up; if an earlier iteration is meant, carry the name in a loop",
            subject=name.text,
        )

    def bind(self, name: ast.Name, kind: Type | None, phase: Phase) -> core.Value:
        """A new value for a name, with the checks of single assignment."""
        self.check_free(name)
        value = self.values.make(name.text, kind, phase, name.span)
        self.names.bind(name.text, Binding(value, self.depth))
        return value

    def check_free(self, name: ast.Name) -> None:
        """MC001, MC302 or MC003 if the name cannot be bound here."""
        symbol = self.symbols.table.get(name.text)
        if symbol is not None and symbol.kind != "type":
            self.report.report(
                rules.MC001,
                f"`{name.text}` is the name of a {symbol.kind}",
                name.span,
                secondary=(Label(symbol.span, "declared here"),),
                subject=name.text,
            )
            return
        if not self.symbols.allowed(name):
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
            self.bound_twice(name, old)

    def bound_twice(self, name: ast.Name, old: Binding) -> None:
        """MC003."""
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
        """Whether the loop whose body this is carries the name and has not bound it yet in this iteration."""
        return False

    # -------------------------------------------------------------------------------------------------------------- calls

    def call_value(self, tree: ast.Call) -> Typed | None:
        """A call inside an expression: it becomes an operation before, and its one result is the value."""
        found = self.call(tree, None)
        if found is None:
            return poison(tree.span, "device")
        if len(found) == 1 and found[0] is not None:
            value = found[0]
            return Typed(Var(value.id), self.values.type_of(value), value.phase, tree.span)
        self._wrong_results(tree, len(found), 1)
        return poison(tree.span, "device")

    @abstractmethod
    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value | None] | None:
        """Lower a call as an operation. Binds `targets` to its results, or makes unnamed values; None after an error."""

    def results(
        self, ports: Sequence[tuple[str, Type | None]], targets: Sequence[ast.Name] | None, phase: Phase, tree: ast.Call
    ) -> list[core.Value | None] | None:
        """Values for the results of a call: the targets' names, or unnamed ones called like the ports."""
        if targets is None:
            return [self.values.make(name, kind, phase, tree.span, named=False) for name, kind in ports]
        if len(targets) != len(ports):
            self._wrong_results(tree, len(ports), len(targets))
            return self.fail(targets, phase)
        pairs = zip(targets, ports, strict=True)
        return [None if name.text == "_" else self.bind(name, kind, phase) for name, (_, kind) in pairs]

    def _wrong_results(self, tree: ast.Call, given: int, wanted: int) -> None:
        what = "no value" if given == 0 else "one value" if given == 1 else f"{given} values"
        due = "one is due here" if wanted == 1 else f"{wanted} names stand for {'it' if given == 1 else 'them'}"
        if given == 0:
            due, help_text = "one is due here", "call it as a statement of its own"
        elif given == 1:
            help_text = "write one name before `=`"
        else:
            help_text = f"bind them first: {given} names before `=`; `_` discards one"
        self.report.report(
            rules.MC004,
            f"`{path_text(tree.callee)}` gives {what}, {due}",
            tree.span,
            help=help_text,
            subject=path_text(tree.callee),
        )

    def fail(self, targets: Sequence[ast.Name] | None, phase: Phase) -> list[core.Value | None] | None:
        """After an error in a call: bind its targets to unknown values, so that nothing follows from it. Gives None."""
        for target in targets or ():
            if target.text != "_":
                self.bind(target, None, phase)
        return None

    def extern(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value | None] | None:
        """A call of typed host Python; its results are host values."""
        name = path_text(tree.callee)
        decl = next((extern for extern in self.program.externs if extern.name == name), None)
        if decl is None:
            return self.fail(targets, "host")
        self.no_access(tree)
        matcher = Matcher(self.expressions, name, tree.span)
        args = self.arguments(matcher, decl.params, tree, all_due=True)
        if args is None:
            return self.fail(targets, "host")
        kinds = [(name if port.name == "result" else port.name, matcher.instance(port.type)) for port in decl.results]
        results = self.results(kinds, targets, "host", tree)
        if results is not None:
            self.ops.append(core.Extern(name, tuple(a.expr for a in args if a), tuple(results), span=tree.span))
        return results

    def no_access(self, tree: ast.Call) -> None:
        """MC507 for an access clause on a call that uses no context."""
        for access in tree.access:
            message = f"`{path_text(tree.callee)}` uses no context"
            self.report.report(rules.MC507, message, access.span, help="delete the clause")

    def arguments(
        self, matcher: Matcher, ports: Sequence[declarations.Port], tree: ast.Call, all_due: bool = False
    ) -> list[Typed | None] | None:
        """Lower and check the arguments of a call against its ports, in order; None if they are not as many."""
        arranged = matcher.arrange(ports, tree.args, all_due)
        if arranged is None:
            for arg in tree.args:  # errors inside them are errors all the same
                self.expressions.lower(arg.value)
            return None
        args: list[Typed | None] = []
        for port, written in zip(ports, arranged, strict=True):
            typed = None if written is None else self.expressions.lower(written, port.type)
            if typed is not None:
                matcher.check(port, typed)
            args.append(typed)
        return args

    def assign_value(self, tree: ast.Assign, value: Typed) -> None:
        """`name = expression`."""
        if len(tree.targets) != 1:
            message = f"one value is bound to {len(tree.targets)} names"
            self.report.report(rules.MC004, message, tree.value.span, help="write one name before `=`")
            self.fail(tree.targets, value.phase)
            return
        name = tree.targets[0]
        if name.text != "_":
            made = self.bind(name, content(value.type), value.phase)
            self.ops.append(core.Compute(made, value.expr, span=tree.span))

    def unused(self, value: Typed) -> None:
        """MC006 for an expression that stands alone, unless it has an error of its own."""
        if value.type is not None:
            help_text = "bind it, or delete the statement"
            self.report.report(rules.MC006, "this value is not used", value.span, help=help_text)

    def is_operation(self, tree: ast.Expr) -> bool:
        """Whether an expression is one call that is an operation, not a built-in inside an expression."""
        return isinstance(tree, ast.Call) and path_text(tree.callee) not in BUILTINS

    def exprs(self, args: Sequence[Typed | None]) -> tuple[Expr | None, ...]:
        return tuple(None if arg is None else arg.expr for arg in args)
