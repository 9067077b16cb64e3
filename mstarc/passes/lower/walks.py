"""Walk bodies to IR: statements, guards, streams and contexts. Loops are in `walk_loops`, calls in `walk_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core, declarations
from mstarc.ir.types import MODALITIES, Chunk, Enum, Expr, Phase, Ref, Scalar, Tensor, Type, Var
from mstarc.passes.lower.calls import Matcher
from mstarc.passes.lower.chunks import chunk_type
from mstarc.passes.lower.declarations import Declarations
from mstarc.passes.lower.symbols import Symbols
from mstarc.passes.lower.typed import INT, Typed, content, poison, type_text
from mstarc.passes.lower.walk_loops import WalkLoops
from mstarc.source import Span
from mstarc.syntax import ast

EMIT_ATTRS: Mapping[str, tuple[str, ...]] = {"audio": ("rate",), "video": ("rate",)}


class WalkBody(WalkLoops):
    """Lowers one walk. `phases` are those of its parameters, from its call sites."""

    def __init__(
        self, program: core.Program, symbols: Symbols, declarations: Declarations, report: Collector, tree: ast.Walk
    ) -> None:
        super().__init__(program, symbols, declarations, report)
        self.tree = tree
        self.loops = []
        self.labels = {}
        self._outer_parallel = []

    def lower(self, phases: Mapping[str, Phase]) -> core.Walk:
        """The walk, with provisional value ids and types."""
        params = []
        kinds = self.declarations.signature(self.tree.params, self.dims)
        for field, kind in zip(self.tree.params, kinds, strict=True):
            params.append(self.bind(field.name, kind, phases.get(field.name.text, "host")))
        self.statements(self.tree.body)
        outputs = self._outputs()
        body = core.Block(tuple(self.ops))
        return core.Walk(self.tree.name.text, tuple(params), tuple(outputs), body, span=self.tree.span)

    def _outputs(self) -> list[core.Output]:
        """The walk's results: names of its top level, of the declared types."""
        kinds = self.declarations.outputs(self.tree.results, self.dims)
        found: list[core.Output] = []
        for field, kind in zip(self.tree.results, kinds, strict=True):
            value = self.lookup(field.name)
            if value is None:
                message = f"walk `{self.tree.name.text}` never binds its result `{field.name.text}`"
                self.report.report(rules.MC002, message, field.name.span, subject=field.name.text)
                continue
            if kind is None or not isinstance(value.expr, Var):
                continue
            matcher = Matcher(self.expressions, self.tree.name.text, field.span)
            matcher.accept(field.name.text, kind, value)
            found.append(core.Output(field.name.text, kind, value.expr.id))
        return found

    # -------------------------------------------------------------------------------------------------------- statements

    def statement(self, tree: ast.Stmt) -> None:
        match tree:
            case ast.Assign(targets, value):
                if isinstance(value, ast.Call) and self.is_operation(value):
                    self.call(value, targets)
                else:
                    self.assign_value(tree, self.expressions.lower(value))
            case ast.Do():
                self._do(tree)
            case ast.Emit():
                self._emit(tree)
            case ast.Send():
                self._send(tree)
            case ast.Collect():
                self.collect(tree)
            case ast.Fork(target, source, span):
                if self.contexts_known((target, source)):
                    self.ops.append(core.Fork(target.text, source.text, span=span))
            case ast.Drop(contexts, span):
                if self.contexts_known(contexts):
                    self.ops.append(core.Drop(tuple(name.text for name in contexts), span=span))
            case ast.Guarded():
                self.guarded(tree)
            case ast.Stop():
                self.stop(tree)
            case ast.Loop():
                self.loop(tree)
            case ast.For():
                self._for(tree)
            case ast.Parallel(body, span):
                self._parallel(body, span)
            case ast.If(span=span):
                self._misplaced("if", span, "a walk says `when` behind a statement; `if` belongs to requests")
            case ast.Together(span=span):
                self._misplaced("together", span, "`together` belongs to requests")
            case ast.Require(span=span):
                self._misplaced("require", span, "`require` belongs to requests")

    def _misplaced(self, word: str, span: Span, help_text: str) -> None:
        at = Span(span.file, span.start, span.start + len(word))
        self.report.report(rules.MC010, f"`{word}` cannot stand in a walk", at, help=help_text)

    def _do(self, tree: ast.Do) -> None:
        """A call whose results nobody wants: it must have an effect."""
        if not self.is_operation(tree.call):
            self.unused(self.expressions.lower(tree.call))
            return
        before = len(self.ops)
        results = self.call(tree.call, None)
        made = self.ops[-1] if len(self.ops) > before else None
        if results is not None and isinstance(made, core.Invoke) and not self._has_effect(made):
            message = f"the results of `{made.node}.{made.op}` are not used, and it does nothing else"
            self.report.report(rules.MC006, message, tree.span, help="bind them, or delete the statement")

    def _has_effect(self, op: core.Invoke) -> bool:
        node = next(node for node in self.program.nodes if node.name == op.node)
        decl = next(decl for decl in node.ops if decl.name == op.op)
        return bool(op.writes or node.states or decl.attrs.random or decl.attrs.samples or not decl.results)

    def _emit(self, tree: ast.Emit) -> None:
        value = self.expressions.value(tree.value)
        modality = tree.modality.text
        if modality not in MODALITIES:
            self.symbols.unknown(tree.modality, "modality", MODALITIES)
        kind = content(value.type)
        if kind is not None and not isinstance(kind, Tensor | Scalar | Enum):
            self.expressions.mismatch(f"a value of type {type_text(kind)} cannot be emitted", value.span)
        attrs: list[tuple[str, Expr]] = []
        for arg in tree.attrs:
            if arg.name is None:
                message = "attributes of `emit` are given by name"
                self.report.report(rules.MC004, message, arg.span, help="write `audio(rate = 24000)`")
                continue
            if modality in MODALITIES and arg.name.text not in EMIT_ATTRS.get(modality, ()):
                self.symbols.setting(arg.name, f"modality `{modality}`", EMIT_ATTRS.get(modality, ()))
            attrs.append((arg.name.text, self.expressions.number(arg.value, f"`{arg.name.text}`").expr))
        self.ops.append(core.Emit(value.expr, modality, tuple(attrs), span=tree.span))

    def _send(self, tree: ast.Send) -> None:
        value = self.expressions.lower(tree.value)
        stream = self.stream(ast.Path((tree.stream,), tree.stream.span))
        if stream is not None:
            Matcher(self.expressions, stream.name, tree.span).check(declarations.Port("item", stream.item), value)
            self.ops.append(core.Send(value.expr, stream.name, span=tree.span))

    def _parallel(self, body: ast.Block, span: Span) -> None:
        outer, self.ops = self.ops, []
        self.parallel.append({})
        self.statements(body, parallel=True)
        self.parallel.pop()
        ops, self.ops = self.ops, outer
        self.ops.append(core.Par(core.Block(tuple(ops)), span=span))

    def _for(self, tree: ast.For) -> None:
        """`for a, b in s, t { }`."""
        if tree.cases:
            self._misplaced("for", tree.span, "`for ... case` goes over parts and belongs to requests")
            return
        found = [self.stream(over) for over in tree.over]
        streams = [stream for stream in found if stream is not None]
        if len(tree.names) != len(tree.over):
            message = f"{len(tree.over)} streams give {len(tree.over)} chunks, {len(tree.names)} names stand for them"
            self.report.report(rules.MC004, message, tree.span, help="write one name a stream")
            return
        kinds: Sequence[Type | None] = [Chunk(s.name, chunk_type(s, self.dims)) for s in streams]
        if len(streams) < len(found):
            kinds = [None] * len(found)
        self.depth += 1
        with self.block("`for`") as ops:
            items = [self.bind(name, kind, "device") for name, kind in zip(tree.names, kinds, strict=True)]
            assert tree.body is not None
            self.statements(tree.body)
        self.depth -= 1
        names = tuple(stream.name for stream in streams)
        self.ops.append(core.ForChunks(names, tuple(items), core.Block(tuple(ops)), span=tree.span))

    def lookup(self, name: ast.Name) -> Typed | None:
        if name.text == "iter":
            if self.loops:
                return Typed(Ref("iter", self.loops[-1].label), INT, "host", name.span)
            self.report.report(rules.MC002, "`iter` counts the iterations of a loop, and there is none", name.span)
            return poison(name.span)
        return super().lookup(name)
