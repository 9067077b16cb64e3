"""Request programs to IR: walk calls, externs, `if`, `for ... case`, `together`, `require`. Notes the phases of walk arguments."""

from __future__ import annotations

from collections.abc import Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core
from mstarc.ir.types import MODALITIES, Media, Parts, Phase, Scalar, Tensor, Type
from mstarc.passes.lowering.body import FAILED, Body
from mstarc.passes.lowering.calls import Matcher
from mstarc.passes.lowering.declarations import Declarations
from mstarc.passes.lowering.dims import free_dims, type_text
from mstarc.passes.lowering.expressions import BUILTIN_ARITY, path_text
from mstarc.passes.lowering.symbols import Symbols
from mstarc.syntax import ast


class RequestBody(Body):
    """Lowers one request. `phases[walk][param]` becomes `device` where some call passes a device value."""

    def __init__(
        self,
        program: core.Program,
        symbols: Symbols,
        declarations: Declarations,
        report: Collector,
        tree: ast.Request,
        phases: dict[str, dict[str, Phase]],
    ) -> None:
        super().__init__(program, symbols, report, f"request `{tree.name.text}`")
        self.tree = tree
        self.declarations = declarations
        self.phases = phases
        self._arms = 0

    def lower(self) -> core.Request:
        """The request, with provisional value ids."""
        inputs: list[core.Value] = []
        for field in self.tree.params:
            kind = self.declarations.type_of(field.type, self.dims)
            self.dims.update(free_dims(kind) if kind is not None else ())
            value = self.bind(field.name, kind, "host")
            self._types[value.id] = kind
            inputs.append(value)
        outputs: list[tuple[str, bool]] = []
        for output in self.tree.outputs:
            if output.modality.text not in MODALITIES:
                self.symbols.unknown(output.modality, "modality", MODALITIES)
            outputs.append((output.modality.text, output.optional))
        self.statements(self.tree.body)
        return core.Request(
            self.tree.name.text, tuple(inputs), tuple(outputs), core.Block(tuple(self.ops)), span=self.tree.span
        )

    def statements(self, block: ast.Block) -> None:
        """The statements of a block, in order."""
        for statement in block.stmts:
            self.statement(statement)

    def statement(self, tree: ast.Stmt) -> None:
        match tree:
            case ast.Assign(targets, ast.Call() as call) if path_text(call.callee) not in BUILTIN_ARITY:
                if self.call(call, targets) is FAILED:
                    self.fail(targets, "host")
            case ast.Assign():
                self.assign_value(tree, self.expressions.host(tree.value, "a value of a request"))
            case ast.Do(call):
                self.call(call, None)
            case ast.Guarded():
                self.guarded(tree)
            case ast.If():
                self._if(tree)
            case ast.For():
                self._for(tree)
            case ast.Together():
                self._together(tree)
            case ast.Require(cond, text, span):
                found = self.expressions.host(cond, "`require`")
                self.ops.append(core.Require(found.expr, text, span=span))
            case _:
                word = type(tree).__name__.lower()
                self.report.report(
                    rules.MC010, f"`{word}` cannot stand in a request", tree.span, help="it belongs to a walk"
                )

    # ----------------------------------------------------------------------------------------------------------- control

    def _if(self, tree: ast.If) -> None:
        cond = self.expressions.host(tree.cond, "`if`")
        with self.block("one arm of `if`") as then:
            self.statements(tree.then)
        other: list[core.Op] = []
        if tree.other is not None:
            with self.block("one arm of `if`") as other:
                self.statements(tree.other)
        self.ops.append(core.If(cond.expr, core.Block(tuple(then)), core.Block(tuple(other)), span=tree.span))

    def _for(self, tree: ast.For) -> None:
        if len(tree.over) != 1 or len(tree.names) != 1:
            self.report.report(rules.MC004, "a request goes over one list with one name", tree.span)
            return
        over = self.expressions.host(tree.over[0], "a list of parts")
        members = over.type.members if isinstance(over.type, Parts) else None
        if over.type is not None and members is None:
            self.report.report(
                rules.MC007, f"`for` goes over a list of parts, not over {type_text(over.type)}", over.span
            )
            return
        cases: list[core.Case] = []
        self.depth += 1
        if tree.body is not None:
            kind = self._part(members[0]) if members is not None and len(members) == 1 else None
            cases.append(self._case(tree.names[0], "", kind, tree.body))
        for case in tree.cases:
            if members is not None and case.kind.text not in members:
                self.symbols.unknown(case.kind, "kind of part here", members)
                continue
            if case.kind.text in [made.kind for made in cases]:
                self.report.report(
                    rules.MC304, f"`case {case.kind.text}` stands twice", case.kind.span, subject=case.kind.text
                )
                continue
            cases.append(self._case(tree.names[0], case.kind.text, self._part(case.kind.text), case.body))
        self.depth -= 1
        missing = [member for member in members or () if tree.cases and member not in [case.kind for case in cases]]
        if missing:
            self.report.report(
                rules.MC304,
                f"`for` has no case for {', '.join(f'`{name}`' for name in missing)}",
                tree.span,
                help="add a case, or an empty one to skip such parts",
            )
        self.ops.append(core.ForParts(over.expr, tuple(cases), span=tree.span))

    def _case(self, name: ast.Name, kind: str, item: Type | None, body: ast.Block) -> core.Case:
        with self.block(f"`case {kind}`" if kind else "`for`") as ops:
            value = self.bind(name, item, "host")
            self._types[value.id] = item
            self.statements(body)
        return core.Case(kind, value, core.Block(tuple(ops)))

    def _part(self, name: str) -> Type | None:
        if name in self.declarations.structs:
            return self.declarations.structs[name]
        return Scalar("text") if name == "text" else Media(name)

    def _together(self, tree: ast.Together) -> None:
        arms: list[core.Arm] = []
        for arm in tree.branches:
            self._arms += 1
            label = arm.label.text if arm.label is not None else f"arm_{self._arms}"
            if label in [made.label for made in arms]:
                at = arm.label.span if arm.label is not None else arm.body.span
                self.report.report(rules.MC001, f"two arms are called `{label}`", at, subject=label)
            with self.block(f"arm `{label}`") as ops:
                self.statements(arm.body)
            arms.append(core.Arm(label, core.Block(tuple(ops))))
        self.ops.append(core.Together(tuple(arms), span=tree.span))

    # ------------------------------------------------------------------------------------------------------------- calls

    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        name = path_text(tree.callee)
        symbol = self.symbols.table.get(name) if len(tree.callee.names) == 1 else None
        if symbol is not None and symbol.kind == "extern":
            return self.extern(tree, targets)
        if symbol is not None and symbol.kind == "walk":
            return self._walk(tree, targets, symbol.tree)
        if symbol is not None or len(tree.callee.names) > 1 or name in ("sample", "noise", "next"):
            what = f"a {symbol.kind}" if symbol is not None else "an op" if len(tree.callee.names) > 1 else "for walks"
            self.report.report(
                rules.MC002, f"a request calls walks and externs; `{name}` is {what}", tree.callee.span, subject=name
            )
            return self.fail(targets, "host")
        known = [other for other, found in self.symbols.table.items() if found.kind in ("walk", "extern")]
        self.symbols.unknown(tree.callee.names[0], "walk or extern", known)
        return self.fail(targets, "host")

    def _walk(self, tree: ast.Call, targets: Sequence[ast.Name] | None, walk: object) -> Sequence[core.Value]:
        assert isinstance(walk, ast.Walk)
        ports = self._ports(walk.params)
        matcher = Matcher(self.symbols, self.report, walk.name.text, tree.span, self.loose)
        args = self.arguments(matcher, ports, tree)
        if args is not None:
            self._note_phases(walk.name.text, ports, tree)
        outputs = self._ports(walk.results)
        kinds: list[tuple[str, Type | None]] = [(port.name, self.fresh(matcher, port.type)) for port in outputs]
        results = self.results(kinds, targets, "device", tree) if targets is not None or kinds else []
        if args is None or results is None:
            return FAILED if targets is None else ()
        self.ops.append(
            core.CallWalk(walk.name.text, tuple(a for a in args if a is not None), tuple(results), span=tree.span)
        )
        return [value for value in results if value is not None]

    def _ports(self, fields: Sequence[ast.PortDef]) -> tuple[core.Port, ...]:
        ports = []
        for field in fields:
            kind = self.declarations.type_of(field.type, set())
            ports.append(core.Port(field.name.text, kind if kind is not None else Tensor("f32")))
        return tuple(ports)

    def _note_phases(self, walk: str, ports: Sequence[core.Port], tree: ast.Call) -> None:
        """A walk's parameter is a device value if any call site passes one."""
        known = self.phases.setdefault(walk, {port.name: "host" for port in ports})
        for k, arg in enumerate(tree.args):
            name = arg.name.text if arg.name is not None else ports[k].name
            if self._is_device(arg.value):
                known[name] = "device"

    def _is_device(self, tree: ast.Expr) -> bool:
        """Whether an argument reads a walk's result. Asked after the argument was lowered, so every name is known."""
        match tree:
            case ast.Path(names):
                binding = self.names.find(names[0].text)
                return binding is not None and binding.value.phase == "device"
            case ast.Call(callee):
                symbol = self.symbols.table.get(path_text(callee))
                return symbol is not None and symbol.kind == "walk"
            case ast.Unary(_, x):
                return self._is_device(x)
            case ast.Binary(_, a, b) | ast.IfThen(_, a, b):
                return self._is_device(a) or self._is_device(b)
            case ast.Sub(base):
                return self._is_device(base)
            case _:
                return False
