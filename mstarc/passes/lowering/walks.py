"""Walk bodies to IR: op calls, loops with carries, guards, streams and contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core
from mstarc.ir.types import MODALITIES, Chunk, Expr, Lit, Phase, Ref, Tensor, Type, Var
from mstarc.passes.lowering.body import FAILED, AccessAware
from mstarc.passes.lowering.calls import Matcher
from mstarc.passes.lowering.declarations import Declarations
from mstarc.passes.lowering.dims import free_dims, may_equal, type_text
from mstarc.passes.lowering.expressions import BUILTIN_ARITY, Typed, path_text
from mstarc.passes.lowering.op_calls import OpCalls
from mstarc.passes.lowering.scope import Binding
from mstarc.passes.lowering.symbols import Symbols
from mstarc.source import Span
from mstarc.syntax import ast


class _LoopScope:
    """A loop whose body is being lowered."""

    def __init__(self, label: str, carried: Sequence[str]) -> None:
        self.label = label
        self.carried = list(carried)
        self.gathers: dict[str, core.Gather] = {}
        self.rebound: set[str] = set()


class WalkBody(OpCalls, AccessAware):
    """Lowers one walk. `phases` are the phases of its parameters, from its call sites."""

    def __init__(
        self, program: core.Program, symbols: Symbols, declarations: Declarations, report: Collector, tree: ast.Walk
    ) -> None:
        super().__init__(program, symbols, report, f"walk `{tree.name.text}`")
        self.tree = tree
        self.declarations = declarations
        self.loops: list[_LoopScope] = []

    def lower(self, phases: Mapping[str, Phase]) -> core.Walk:
        """The walk, with provisional value ids."""
        params: list[core.Value] = []
        for field in self.tree.params:
            kind = self.declarations.type_of(field.type, self.dims)
            self.dims.update(free_dims(kind) if kind is not None else ())
            value = self.bind(field.name, kind, phases.get(field.name.text, "device"))
            self._types[value.id] = kind
            params.append(value)
        self.statements(self.tree.body)
        outputs: list[core.Output] = []
        for field in self.tree.results:
            kind = self.declarations.type_of(field.type, set())
            binding = self.names.find(field.name.text)
            if binding is None:
                gone = self.names.gone.get(field.name.text)
                where = f"; it is bound inside {gone}" if gone else ""
                self.report.report(
                    rules.MC002,
                    f"walk `{self.tree.name.text}` never binds its result `{field.name.text}`{where}",
                    field.name.span,
                    subject=field.name.text,
                )
                continue
            binding.used = True
            outputs.append(core.Output(field.name.text, self.type_or_scalar(kind), binding.value.id))
        return core.Walk(
            self.tree.name.text, tuple(params), tuple(outputs), core.Block(tuple(self.ops)), span=self.tree.span
        )

    # -------------------------------------------------------------------------------------------------------- statements

    def statements(self, block: ast.Block) -> None:
        """The statements of a block, in order."""
        later = [set(_bound_names(statement)) for statement in block.stmts]
        for k, statement in enumerate(block.stmts):
            outer, self.pending = self.pending, set().union(self.pending, *later[k:])
            self.statement(statement)
            self.pending = outer

    def statement(self, tree: ast.Stmt) -> None:
        match tree:
            case ast.Assign():
                self._assign(tree)
            case ast.Do(call):
                self.call(call, () if path_text(call.callee) == "next" else None)
            case ast.Emit():
                self._emit(tree)
            case ast.Send(value, stream, span):
                typed = self.expressions.lower(value)
                found = self.symbols.find(stream, "stream")
                if found is not None:
                    self._check_item(stream.text, typed)
                    self.ops.append(core.Send(typed.expr, stream.text, span=span))
            case ast.Collect():
                self._collect(tree)
            case ast.Fork(target, source, span):
                if self.symbols.find(target, "context") and self.symbols.find(source, "context"):
                    self.ops.append(core.Fork(target.text, source.text, span=span))
            case ast.Drop(contexts, span):
                found_all = [self.symbols.find(name, "context") for name in contexts]
                if all(found_all):
                    self.ops.append(core.Drop(tuple(name.text for name in contexts), span=span))
            case ast.Guarded():
                self.guarded(tree)
            case ast.Stop():
                self._stop(tree)
            case ast.Loop():
                self._loop(tree)
            case ast.For():
                self._for(tree)
            case ast.Parallel(body, span):
                self._parallel(body, span)
            case ast.If(_, _, _, span):
                self._misplaced("if", span, "a walk takes `when` behind a statement; `if` belongs to requests")
            case ast.Together(_, span):
                self._misplaced("together", span, "`together` belongs to requests")
            case ast.Require(_, _, span):
                self._misplaced("require", span, "`require` belongs to requests")

    def _misplaced(self, word: str, span: Span, help_text: str) -> None:
        self.report.report(rules.MC010, f"`{word}` cannot stand in a walk", span, help=help_text)

    def _assign(self, tree: ast.Assign) -> None:
        value = tree.value
        if isinstance(value, ast.Call) and self._is_operation(value):
            if self.call(value, tree.targets) is FAILED:
                self.fail(tree.targets, "device")
            return
        self.assign_value(tree, self.expressions.lower(value))

    def _is_operation(self, tree: ast.Call) -> bool:
        """Whether a call is an operation of its own, rather than a built-in inside an expression."""
        return path_text(tree.callee) not in BUILTIN_ARITY

    def _emit(self, tree: ast.Emit) -> None:
        value = self.expressions.lower(tree.value)
        if tree.modality.text not in MODALITIES:
            self.symbols.unknown(tree.modality, "modality", MODALITIES)
        attrs: list[tuple[str, Expr]] = []
        for arg in tree.attrs:
            if arg.name is not None:
                attrs.append((arg.name.text, self.expressions.host(arg.value, f"`{arg.name.text}`").expr))
            else:
                self.report.report(rules.MC004, "attributes of `emit` are given by name", arg.span)
        self.ops.append(core.Emit(value.expr, tree.modality.text, tuple(attrs), span=tree.span))

    def _check_item(self, name: str, value: Typed) -> None:
        stream = next((stream for stream in self.program.streams if stream.name == name), None)
        if stream is None:
            return
        port = core.Port("item", stream.item)
        Matcher(self.symbols, self.report, name, value.span).check(port, value)

    def _collect(self, tree: ast.Collect) -> None:
        value = self.expressions.lower(tree.value)
        if not self.loops:
            self.report.report(rules.MC206, "`collect` stands outside a loop", tree.span)
            return
        loop = self.loops[-1]
        into = tree.name.text
        if into in loop.carried:
            self.report.report(rules.MC206, f"`{into}` is both carried and collected", tree.name.span, subject=into)
            return
        if into not in loop.gathers:
            item = value.type if isinstance(value.type, Tensor) else Tensor("i64")
            dim = self._fresh_dim(into)
            rest = item.dims[1:] if item.dims else ()
            result = core.Gather(
                into, self.values.make(into, Tensor(item.dtype, (dim, *rest)), "device", tree.name.span)
            )
            loop.gathers[into] = result
            self._types[result.result.id] = result.result.type
        self.ops.append(core.Collect(value.expr, into, span=tree.span))

    def _fresh_dim(self, name: str) -> Ref:
        new, count = f"n_{name}", 1
        while new in self.dims:
            count += 1
            new = f"n_{name}_{count}"
        self.dims.add(new)
        return Ref("dim", new)

    def _stop(self, tree: ast.Stop) -> None:
        cond = self.expressions.lower(tree.cond)
        kind = cond.type
        is_bool = kind is None or type_text(kind).startswith("bool")
        if not is_bool or (isinstance(kind, Tensor) and kind.dims):
            self.report.report(
                rules.MC205,
                f"`stop when` tests a {type_text(kind)}, not a bool",
                cond.span,
                "one truth value is due here",
            )
        if not self.loops:
            self.report.report(rules.MC205, "`stop when` stands outside a loop", tree.span)
            return
        carried = tuple(Var(self.names.find(name).value.id) for name in self.loops[-1].carried if self.names.find(name))  # type: ignore[union-attr]
        self.ops.append(core.Stop(cond.expr, carried, span=tree.span))

    # ------------------------------------------------------------------------------------------------------------- loops

    def may_rebind(self, name: str) -> bool:
        if not self.loops or name not in self.loops[-1].carried:
            return False
        binding = self.names.find(name)
        again = name in self.loops[-1].rebound
        self.loops[-1].rebound.add(name)
        return binding is not None and not again

    def _loop(self, tree: ast.Loop) -> None:
        self._declare_label(tree.label)
        bound = self.expressions.host(tree.bound, f"the bound of loop `{tree.label.text}`")
        inits = self._inits(tree)
        self.depth += 1
        inners: list[core.Value] = []
        with self.block(f"loop `{tree.label.text}`") as ops:
            for carry, init in inits:
                kind = _tensor(init.type)
                inner = self.values.make(carry.name.text, kind, "device", carry.name.span)
                self._types[inner.id] = kind
                self.names.bind(carry.name.text, Binding(inner, kind, self.depth))
                inners.append(inner)
            scope = _LoopScope(tree.label.text, [carry.name.text for carry, _ in inits])
            self.loops.append(scope)
            outer, self.parallel = self.parallel, []
            self.statements(tree.body)
            self.parallel = outer
            self.loops.pop()
            nexts = [self._next(carry, init, inner, scope) for (carry, init), inner in zip(inits, inners, strict=True)]
        self.depth -= 1
        carries: list[core.Carry] = []
        for (carry, init), inner, (following, kind) in zip(inits, inners, nexts, strict=True):
            result = self.values.make(carry.name.text, kind, "device", carry.name.span)
            self._types[result.id] = kind
            self.names.bind(carry.name.text, Binding(result, kind, self.depth))
            carries.append(core.Carry(init.expr, inner, following, result))
        for name, gather in scope.gathers.items():
            self._check_rebinding(ast.Name(name, gather.result.span))
            self.names.bind(name, Binding(gather.result, gather.result.type, self.depth))
        self.ops.append(
            core.Loop(
                tree.label.text,
                "times" if tree.kind == "times" else "max",
                bound.expr,
                tuple(carries),
                tuple(scope.gathers.values()),
                core.Block(tuple(ops)),
                span=tree.span,
            )
        )

    def _declare_label(self, label: ast.Name) -> None:
        taken = self._labels.get(label.text)
        if taken is not None or label.text in self.symbols.table:
            self.report.report(
                rules.MC001,
                f"`{label.text}` is taken",
                label.span,
                secondary=(Label(taken, "another loop has it"),) if taken is not None else (),
                subject=label.text,
            )
        self._labels[label.text] = label.span

    @property
    def _labels(self) -> dict[str, Span]:
        if not hasattr(self, "_label_table"):
            self._label_table: dict[str, Span] = {}
        return self._label_table

    def _inits(self, tree: ast.Loop) -> list[tuple[ast.Carry, Typed]]:
        found: list[tuple[ast.Carry, Typed]] = []
        for carry in tree.carries:
            if carry.init is not None:
                found.append((carry, self.expressions.lower(carry.init)))
                continue
            binding = self.names.find(carry.name.text)
            if binding is None:
                self.report.report(
                    rules.MC202,
                    f"loop `{tree.label.text}` carries `{carry.name.text}`, which has no initial value",
                    carry.name.span,
                    help=f"bind it before the loop, or write `carry {carry.name.text} = ...`",
                    subject=carry.name.text,
                )
                found.append((carry, self.expressions.poison(carry.name.span, "device")))
                continue
            binding.used = True
            found.append((carry, Typed(Var(binding.value.id), binding.type, binding.value.phase, carry.name.span)))
        return found

    def _next(self, carry: ast.Carry, init: Typed, inner: core.Value, scope: _LoopScope) -> tuple[Expr, Type | None]:
        """The value a carried name has at the end of the body."""
        name = carry.name.text
        binding = self.names.find(name)
        assert binding is not None
        binding.used = True
        if binding.value.id == inner.id:
            self.report.report(
                rules.MC202,
                f"loop `{scope.label}` does not rebind `{name}`",
                carry.name.span,
                f"`{name}` is carried from one iteration to the next",
                help=f"bind `{name}` in the body, or leave it out of `carry`",
                subject=name,
            )
        elif getattr(binding.type, "optional", False):
            self.report.report(
                rules.MC202,
                f"loop `{scope.label}` does not rebind `{name}` on every path",
                binding.value.span,
                "bound under `when`",
                notes=("the next iteration would wait for a value that never arrives",),
                subject=name,
            )
        elif not _same_type(_tensor(init.type), binding.type):
            self.report.report(
                rules.MC203,
                f"`{name}` enters loop `{scope.label}` as {type_text(init.type)} and leaves its body as {type_text(binding.type)}",
                binding.value.span,
                secondary=(Label(carry.name.span, f"carried as {type_text(init.type)}"),),
                subject=name,
            )
        return Var(binding.value.id), _tensor(init.type)

    def _parallel(self, body: ast.Block, span: Span) -> None:
        outer, self.ops = self.ops, []
        self.parallel.append({})
        self.statements(body)
        self.parallel.pop()
        ops, self.ops = self.ops, outer
        self.ops.append(core.Par(core.Block(tuple(ops)), span=span))

    # ----------------------------------------------------------------------------------------------------------- streams

    def _for(self, tree: ast.For) -> None:
        if tree.cases:
            self.report.report(rules.MC010, "`case` belongs to requests", tree.span)
            return
        streams = [self._stream(over) for over in tree.over]
        if len(tree.names) != len(tree.over):
            self.report.report(rules.MC004, f"{len(tree.over)} streams give {len(tree.names)} names", tree.span)
            return
        if tree.body is None or any(stream is None for stream in streams):
            return
        self.depth += 1
        with self.block("`for`") as ops:
            items: list[core.Value] = []
            for name, stream in zip(tree.names, streams, strict=True):
                assert stream is not None
                kind = Chunk(stream.name, stream.item)
                value = self.bind(name, kind, "device")
                self._types[value.id] = kind
                items.append(value)
            self.statements(tree.body)
        self.depth -= 1
        names = tuple(stream.name for stream in streams if stream is not None)
        self.ops.append(core.ForChunks(names, tuple(items), core.Block(tuple(ops)), span=tree.span))

    def _stream(self, tree: ast.Expr) -> core.Stream | None:
        if not isinstance(tree, ast.Path) or len(tree.names) != 1:
            self.report.report(rules.MC002, "a stream's name is due here", tree.span)
            return None
        if self.symbols.find(tree.names[0], "stream") is None:
            return None
        return next((stream for stream in self.program.streams if stream.name == tree.names[0].text), None)

    def _next_chunks(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        streams = [self._stream(arg.value) for arg in tree.args]
        if not streams or any(stream is None for stream in streams):
            return self.fail(targets, "device")
        kinds: list[tuple[str, Type | None]] = []
        for stream in streams:
            assert stream is not None
            single = stream.policy == "fixed" and dict(stream.args).get("size") == Lit(1)
            item = stream.item if single else Chunk(stream.name, stream.item)
            if stream.after_end_empty and isinstance(item, Tensor):
                item = replace(item, optional=True)
            kinds.append((stream.name, item))
        results = self.results(kinds, targets or None, "device", tree)
        if results is None:
            return ()
        names = tuple(stream.name for stream in streams if stream is not None)
        self.ops.append(core.Next(names, tuple(results), span=tree.span))
        return [value for value in results if value is not None]

    # ------------------------------------------------------------------------------------------------------------- calls

    def lookup(self, name: ast.Name) -> Typed | None:
        if name.text == "iter" and self.names.find("iter") is None:
            if self.loops:
                return Typed(Ref("iter", self.loops[-1].label), None, "host", name.span)
            self.report.report(rules.MC002, "`iter` stands outside a loop", name.span, subject="iter")
            return self.expressions.poison(name.span)
        return super().lookup(name)

    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        name = path_text(tree.callee)
        if name == "sample":
            return self.sample(tree, targets)
        if name == "noise":
            return self.noise(tree, targets)
        if name == "next":
            return self._next_chunks(tree, targets)
        if len(tree.callee.names) == 2:
            return self.invoke(tree, targets)
        symbol = self.symbols.table.get(name)
        if symbol is not None and symbol.kind == "extern":
            return self.extern(tree, targets)
        if symbol is not None and symbol.kind == "walk":
            self.report.report(
                rules.MC002, f"walk `{name}` is called by requests, not by walks", tree.span, subject=name
            )
            return self.fail(targets, "device")
        callables = [other for other, found in self.symbols.table.items() if found.kind == "extern"]
        self.symbols.unknown(
            tree.callee.names[0], "op or extern", [*callables, *self._op_names(), "sample", "noise", "next"]
        )
        return self.fail(targets, "device")

    def _op_names(self) -> list[str]:
        return [f"{node.name}.{op.name}" for node in self.program.nodes for op in node.ops]


# --------------------------------------------------------------------------------------------------------- small helpers


def _tensor(kind: Type | None) -> Type | None:
    """A carried value is on the device: host numbers become tensors."""
    text = type_text(kind)
    return {"int": Tensor("i64"), "float": Tensor("f32"), "bool": Tensor("bool")}.get(text, kind)


def _same_type(a: Type | None, b: Type | None) -> bool:
    b = _tensor(b)
    if a is None or b is None:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        floats = ("f32", "bf16", "f16")
        same = a.dtype == b.dtype or (a.dtype in floats and b.dtype in floats)
        return same and len(a.dims) == len(b.dims) and all(map(may_equal, a.dims, b.dims))
    return type(a) is type(b)


def _bound_names(tree: ast.Stmt) -> list[str]:
    """Names that a statement binds in the block it stands in."""
    match tree:
        case ast.Assign(targets):
            return [name.text for name in targets]
        case ast.Guarded(stmt):
            return _bound_names(stmt)
        case ast.Loop(carries=carries):
            return [carry.name.text for carry in carries]
        case ast.Parallel(body):
            return [name for statement in body.stmts for name in _bound_names(statement)]
        case _:
            return []
