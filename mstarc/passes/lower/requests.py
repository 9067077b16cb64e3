"""Request programs to IR: walk calls, externs, `if`, `for ... case`, `together`, `require`. Notes the phases of walk arguments."""

from __future__ import annotations

from collections.abc import Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core, declarations
from mstarc.ir.types import MODALITIES, Expr, Media, Parts, Phase, Scalar, Type
from mstarc.passes.lower.body import Body
from mstarc.passes.lower.calls import Matcher
from mstarc.passes.lower.declarations import Declarations
from mstarc.passes.lower.dims import Dims, substituted
from mstarc.passes.lower.expressions import path_text
from mstarc.passes.lower.symbols import FORMS, Symbols
from mstarc.passes.lower.typed import type_text
from mstarc.source import Span
from mstarc.syntax import ast

Phases = dict[str, dict[str, Phase]]  # walk -> parameter -> `device` where some call passes a device value


class RequestBody(Body):
    """Lowers one request."""

    def __init__(
        self,
        program: core.Program,
        symbols: Symbols,
        declarations: Declarations,
        report: Collector,
        tree: ast.Request,
        phases: Phases,
    ) -> None:
        super().__init__(program, symbols, declarations, report)
        self.tree = tree
        self.phases = phases
        self._labels: dict[str, Span] = {}

    def lower(self) -> core.Request:
        """The request, with provisional value ids and types."""
        kinds = self.declarations.inputs(self.tree.params, self.dims)
        pairs = zip(self.tree.params, kinds, strict=True)
        inputs = tuple(self.bind(field.name, kind, "host") for field, kind in pairs)
        outputs = self._outputs()
        self.statements(self.tree.body)
        return core.Request(self.tree.name.text, inputs, outputs, core.Block(tuple(self.ops)), span=self.tree.span)

    def _outputs(self) -> tuple[tuple[str, bool], ...]:
        seen: dict[str, bool] = {}
        for output in self.tree.outputs:
            name = output.modality
            if name.text not in MODALITIES:
                self.symbols.unknown(name, "modality", MODALITIES)
            elif name.text in seen:
                self.report.report(rules.MC001, f"the output `{name.text}` stands twice", name.span, subject=name.text)
            seen.setdefault(name.text, output.optional)
        return tuple(seen.items())

    # -------------------------------------------------------------------------------------------------------- statements

    def statement(self, tree: ast.Stmt) -> None:
        match tree:
            case ast.Assign(targets, value):
                if isinstance(value, ast.Call) and self.is_operation(value):
                    self.call(value, targets)
                else:
                    self.assign_value(tree, self.expressions.lower(value))
            case ast.Do(call):
                self._do(call)
            case ast.Guarded():
                self.guarded(tree)
            case ast.If():
                self._if(tree)
            case ast.For():
                self._for(tree)
            case ast.Together():
                self._together(tree)
            case ast.Require(cond, text, span):
                found = self.expressions.condition(cond, f"`require {text}`")
                self.ops.append(core.Require(found.expr, text, span=span))
            case _:
                word = type(tree).__name__.lower()
                at = Span(tree.span.file, tree.span.start, tree.span.start + len(word))
                message = f"`{word}` cannot stand in a request"
                self.report.report(rules.MC010, message, at, help="it belongs to a walk, which the request calls")

    def _do(self, call: ast.Call) -> None:
        if self.is_operation(call):
            self.call(call, None)
            return
        self.unused(self.expressions.lower(call))

    def _if(self, tree: ast.If) -> None:
        cond = self.expressions.condition(tree.cond, "`if`")
        with self.block("one arm of `if`") as then:
            self.statements(tree.then)
        other: list[core.Op] = []
        if tree.other is not None:
            with self.block("one arm of `if`") as other:
                self.statements(tree.other)
        self.ops.append(core.If(cond.expr, core.Block(tuple(then)), core.Block(tuple(other)), span=tree.span))

    def _together(self, tree: ast.Together) -> None:
        arms: list[core.Arm] = []
        for arm in tree.branches:
            label = arm.label.text if arm.label is not None else self._arm_name(tree)
            at = arm.label.span if arm.label is not None else arm.body.span
            if label in self._labels:
                second = (Label(self._labels[label], "the first one"),)
                message = f"two arms are called `{label}`"
                self.report.report(rules.MC001, message, at, secondary=second, subject=label)
            self._labels[label] = at
            with self.block(f"arm `{label}`") as ops:
                self.statements(arm.body)
            arms.append(core.Arm(label, core.Block(tuple(ops))))
        self.ops.append(core.Together(tuple(arms), span=tree.span))

    def _arm_name(self, tree: ast.Together) -> str:
        """`arm_1`, `arm_2`, ... for arms without a label."""
        written = {arm.label.text for arm in tree.branches if arm.label is not None}
        count = 1
        while f"arm_{count}" in self._labels or f"arm_{count}" in written:
            count += 1
        return f"arm_{count}"

    # -------------------------------------------------------------------------------------------------------------- parts

    def _for(self, tree: ast.For) -> None:
        if len(tree.over) != 1 or len(tree.names) != 1:
            message = "in a request, `for` goes over one list of parts with one name"
            at = tree.names[0].span.to(tree.over[-1].span)
            self.report.report(rules.MC004, message, at, help="write one `for` a list")
            return
        over = self.expressions.host(tree.over[0], "a list of parts")
        members = over.type.members if isinstance(over.type, Parts) else None
        if over.type is not None and members is None:
            message = f"`for` goes over a list of parts, not over {type_text(over.type)}"
            self.report.report(rules.MC007, message, over.span)
        cases: list[core.Case] = []
        if tree.body is not None:
            kind = None if members is None else self._part(members[0]) if len(members) == 1 else Parts(members)
            cases.append(self._case(tree.names[0], "", kind, tree.body))
        else:
            cases = self._cases(tree, members, over.span)
        self.ops.append(core.ForParts(over.expr, tuple(cases), span=tree.span))

    def _cases(self, tree: ast.For, members: Sequence[str] | None, over: Span) -> list[core.Case]:
        """MC304 unless each kind has one case."""
        cases: list[core.Case] = []
        first: dict[str, Span] = {}
        for case in tree.cases:
            kind = case.kind.text
            if kind in first:
                second = (Label(first[kind], "the first one"),)
                message = f"`case {kind}` stands twice"
                self.report.report(rules.MC304, message, case.kind.span, secondary=second, subject=kind)
                continue
            first[kind] = case.kind.span
            known = members is None or kind in members
            if not known:
                self.symbols.unknown(case.kind, "kind of part", members or (), "this list")
            cases.append(self._case(tree.names[0], kind, self._part(kind) if known else None, case.body))
        missing = [member for member in members or () if member not in first]
        if missing:
            self.report.report(
                rules.MC304,
                f"`for` has no case for {', '.join(f'`{name}`' for name in missing)}",
                tree.names[0].span.to(over),
                notes=(f"the list holds {', '.join(f'`{name}`' for name in members or ())}",),
                help=f"add `case {missing[0]} {{ }}`; an empty one skips such parts",
                subject=missing[0],
            )
        return cases

    def _case(self, name: ast.Name, kind: str, item: Type | None, body: ast.Block) -> core.Case:
        self.depth += 1
        with self.block(f"`case {kind}`" if kind else "`for`") as ops:
            value = self.bind(name, item, "host")
            self.statements(body)
        self.depth -= 1
        return core.Case(kind, value, core.Block(tuple(ops)))

    def _part(self, name: str) -> Type | None:
        """A part of one kind; its dims differ from part to part."""
        if name == "text":
            return Scalar("text")
        struct = self.symbols.structs.get(name)
        if struct is None:
            return Media(name) if name not in self.symbols.table else None
        made: dict[str, Expr] = {}

        def own(dim: str) -> Expr:
            return made[dim] if dim in made else made.setdefault(dim, self.dims.fresh(dim))

        return substituted(struct, own)

    # -------------------------------------------------------------------------------------------------------------- calls

    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value | None] | None:
        name = path_text(tree.callee)
        symbol = self.symbols.table.get(name) if len(tree.callee.names) == 1 else None
        if symbol is not None and symbol.kind == "extern":
            return self.extern(tree, targets)
        if symbol is not None and isinstance(symbol.tree, ast.Walk):
            return self._walk(tree, targets, symbol.tree)
        if symbol is not None or len(tree.callee.names) > 1 or name in FORMS:
            what = f"a {symbol.kind}" if symbol is not None else "for walks"
            message = f"a request calls walks and externs; `{name}` is {what}"
            help_text = None if symbol is not None else f"call `{name}` in a walk, and here that walk"
            self.report.report(rules.MC002, message, tree.callee.span, subject=name, help=help_text)
        else:
            known = [other for other, found in self.symbols.table.items() if found.kind in ("walk", "extern")]
            self.symbols.unknown(tree.callee.names[0], "walk or extern", known)
        for arg in tree.args if name not in FORMS else ():
            self.expressions.lower(arg.value)
        return self.fail(targets, "host")

    def _walk(
        self, tree: ast.Call, targets: Sequence[ast.Name] | None, walk: ast.Walk
    ) -> Sequence[core.Value | None] | None:
        self.no_access(tree)
        signature = self._signature(walk)
        if signature is None:
            for written in tree.args:  # errors inside them are errors all the same
                self.expressions.lower(written.value)
            return self.fail(targets, "device")
        params, results = signature
        matcher = Matcher(self.expressions, walk.name.text, tree.span)
        args = self.arguments(matcher, params, tree, all_due=True)
        if args is None:
            return self.fail(targets, "device")
        known = self.phases.setdefault(walk.name.text, {})
        for port, arg in zip(params, args, strict=True):
            if arg is not None and known.get(port.name) != "device":
                known[port.name] = arg.phase
        kinds: list[tuple[str, Type | None]] = [(port.name, matcher.instance(port.type)) for port in results]
        made = self.results(kinds, targets, "device", tree)
        if made is not None:
            passed = tuple(arg.expr for arg in args if arg is not None)
            self.ops.append(core.CallWalk(walk.name.text, passed, tuple(made), span=tree.span))
        return made

    def _signature(self, walk: ast.Walk) -> tuple[list[declarations.Port], list[declarations.Port]] | None:
        """Parameters and results of a walk; None if a type is unknown, which is reported where the walk is lowered."""
        quiet = self.declarations.quiet()
        dims = Dims(self.declarations.known)
        params, results = quiet.signature(walk.params, dims), quiet.outputs(walk.results, dims)
        ports = [
            [
                declarations.Port(field.name.text, kind)
                for field, kind in zip(fields, kinds, strict=True)
                if kind is not None
            ]
            for fields, kinds in ((walk.params, params), (walk.results, results))
        ]
        known = len(ports[0]) == len(params) and len(ports[1]) == len(results)
        return (ports[0], ports[1]) if known else None
