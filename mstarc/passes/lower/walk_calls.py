"""Calls in walks: ops with their contexts, `sample`, `noise`, `next`, externs. Takes call trees; gives operations and values."""

from __future__ import annotations

from collections.abc import Sequence

from mstarc.diagnostics import rules
from mstarc.ir import core, declarations
from mstarc.ir.types import DTYPES, Chunk, Tensor, Type
from mstarc.passes.lower.body import Body
from mstarc.passes.lower.calls import Matcher
from mstarc.passes.lower.chunks import chunk_type, is_single
from mstarc.passes.lower.expressions import path_text
from mstarc.passes.lower.typed import FLOATS, as_optional, type_text
from mstarc.syntax import ast

Results = Sequence[core.Value | None] | None


class WalkCalls(Body):
    """The calls that a walk can make."""

    def call(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Results:
        name = path_text(tree.callee)
        match name:
            case "sample":
                return self._sample(tree, targets)
            case "noise":
                return self._noise(tree, targets)
            case "next":
                return self._next(tree, targets)
        if len(tree.callee.names) == 2:
            return self._invoke(tree, targets)
        symbol = self.symbols.table.get(name)
        if symbol is not None and symbol.kind == "extern":
            return self.extern(tree, targets)
        if symbol is not None:
            what = "is called by requests, not by walks" if symbol.kind == "walk" else "cannot be called"
            message = f"the {symbol.kind} `{name}` {what}"
            self.report.report(rules.MC002, message, tree.callee.span, subject=name)
        else:
            externs = [extern.name for extern in self.program.externs]
            ops = [f"{node.name}.{op.name}" for node in self.program.nodes for op in node.ops]
            known = [*externs, *ops, "sample", "noise", "next", "given", "wants", "present", "last", "guide"]
            self.symbols.unknown(ast.Name(name, tree.callee.span), "op or extern", known)
        for arg in tree.args:
            self.expressions.lower(arg.value)
        return self.fail(targets, "device")

    # ----------------------------------------------------------------------------------------------------- draws and chunks

    def _sample(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Results:
        self.no_access(tree)
        if len(tree.args) != 2 or any(arg.name is not None for arg in tree.args):
            self.report.report(
                rules.MC004,
                f"`sample` takes a sampler and logits, {len(tree.args)} arguments are given",
                tree.span,
                help="several contexts stand in parentheses: `writes (a, b)`" if len(tree.args) > 2 else "name both",
                subject="sample",
            )
            return self.fail(targets, "device")
        sampler, written = (arg.value for arg in tree.args)
        logits = self.expressions.value(written)
        if not isinstance(sampler, ast.Path) or len(sampler.names) != 1:
            self.report.report(rules.MC002, "the first argument of `sample` is the name of a sampler", sampler.span)
            return self.fail(targets, "device")
        name = sampler.names[0].text
        if self.symbols.find(sampler.names[0], "sampler") is None:
            return self.fail(targets, "device")
        kind = logits.type
        if kind is not None and not (isinstance(kind, Tensor) and kind.dtype in FLOATS and len(kind.dims) == 1):
            message = f"`sample` draws from logits over a vocabulary, `f32[vocab]`, not from {type_text(kind)}"
            self.report.report(rules.MC007, message, logits.span)
        self.expressions.effect(f"`sample` draws with `{name}`", tree.span)
        results = self.results([("token", Tensor("i64"))], targets, "device", tree)
        if results is not None:
            # a draw joins its sampler's history even if nobody reads it
            result = results[0] or self.values.make("token", Tensor("i64"), "device", tree.span, named=False)
            self.ops.append(core.Sample(name, logits.expr, result, name, span=tree.span))
        return results

    def _noise(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Results:
        self.no_access(tree)
        kind = self._noise_type(tree)
        results = self.results([("noise", kind)], targets, "device", tree)
        if results is not None and results[0] is not None:
            self.ops.append(core.Noise(results[0], targets[0].text if targets else "noise", span=tree.span))
        return results

    def _noise_type(self, tree: ast.Call) -> Tensor | None:
        """The type in `noise(f32[n, 64])`, which the grammar reads as an expression."""
        arg = tree.args[0].value if len(tree.args) == 1 and tree.args[0].name is None else None
        base = arg.base if isinstance(arg, ast.Sub) else arg
        indices = arg.indices if isinstance(arg, ast.Sub) else ()
        if not isinstance(base, ast.Path) or any(isinstance(i, ast.Slice) for i in indices):
            message = "`noise` takes a type, such as `noise(f32[n, 64])`"
            self.report.report(rules.MC004, message, tree.span, subject="noise")
            return None
        if path_text(base) not in FLOATS:
            wanted = "float dtype" if path_text(base) in DTYPES else "dtype"
            self.symbols.unknown(ast.Name(path_text(base), base.span), wanted, FLOATS)
            return None
        dims = [self.expressions.number(i, "a dim").expr for i in indices if not isinstance(i, ast.Slice)]
        return Tensor(path_text(base), tuple(dims))

    def stream(self, tree: ast.Expr) -> declarations.Stream | None:
        """The stream that an expression names."""
        if not isinstance(tree, ast.Path) or len(tree.names) != 1:
            self.report.report(rules.MC002, "the name of a stream is due here", tree.span)
            return None
        if self.symbols.find(tree.names[0], "stream") is None:
            return None
        return next((stream for stream in self.program.streams if stream.name == tree.names[0].text), None)

    def _next(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Results:
        self.no_access(tree)
        if not tree.args:
            message, help_text = "`next` takes the names of streams", "write `next(STREAM)`"
            self.report.report(rules.MC004, message, tree.span, subject="next", help=help_text)
        streams = [self.stream(arg.value) for arg in tree.args]
        known = [stream for stream in streams if stream is not None]
        if len(known) < len(streams) or not known:
            return self.fail(targets, "device")
        self.expressions.effect(f"`next` takes from `{known[0].name}`", tree.span)
        kinds = [(stream.name, self._chunk(stream)) for stream in known]
        results = self.results(kinds, targets, "device", tree)
        if results is not None:
            self.ops.append(core.Next(tuple(stream.name for stream in known), tuple(results), span=tree.span))
        return results

    def _chunk(self, stream: declarations.Stream) -> Type | None:
        """What `next` gives: the item, or a chunk; absent after the end if the stream says so."""
        kind = chunk_type(stream, self.dims)
        if stream.after_end_empty:
            return as_optional(kind)
        return kind if is_single(stream) or kind is None else Chunk(stream.name, kind)

    # ---------------------------------------------------------------------------------------------------------------- ops

    def _invoke(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Results:
        found = self._op(tree)
        if found is None:
            for arg in tree.args:
                self.expressions.lower(arg.value)
            return self.fail(targets, "device")
        node, op = found
        matcher = Matcher(self.expressions, path_text(tree.callee), tree.span)
        args = self.arguments(matcher, op.params, tree)
        contexts = self._contexts(node, op, tree)
        if args is None or contexts is None:
            return self.fail(targets, "device")
        writes, reads = contexts
        changed = writes or [s.name for s in node.states] or ([op.attrs.samples] if op.attrs.samples else [])
        if changed:
            self.expressions.effect(f"`{path_text(tree.callee)}` changes `{changed[0]}`", tree.span)
        kinds: list[tuple[str, Type | None]] = [(port.name, matcher.instance(port.type)) for port in op.results]
        if self._may_be_off(reads):
            kinds = [(name, as_optional(kind)) for name, kind in kinds]
        results = self.results(kinds, targets, "device", tree)
        if results is not None:
            made = core.Invoke(node.name, op.name, self.exprs(args), tuple(results), writes, reads, span=tree.span)
            self.ops.append(made)
        return results

    def _op(self, tree: ast.Call) -> tuple[declarations.Node, declarations.OpDecl] | None:
        node_name, op_name = tree.callee.names
        if self.symbols.find(node_name, "node") is None:
            return None
        node = next((node for node in self.program.nodes if node.name == node_name.text), None)
        if node is None:
            return None
        op = next((op for op in node.ops if op.name == op_name.text), None)
        if op is None:
            self.symbols.unknown(op_name, "op", [op.name for op in node.ops], f"node `{node.name}`")
            return None
        return node, op

    def _may_be_off(self, reads: Sequence[str]) -> bool:
        """Whether a context that the call reads is switched off in some requests: then the results are absent there."""
        return any(context.when is not None for context in self.program.contexts if context.name in reads)

    def _contexts(
        self, node: declarations.Node, op: declarations.OpDecl, tree: ast.Call
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """(writes, reads) of a call: as written, or the cache's only context. None after an error."""
        found: dict[str, tuple[str, ...]] = {}
        for access in tree.access:
            if access.word in found:
                message = f"`{access.word}` stands twice; several contexts stand in parentheses"
                self.report.report(rules.MC004, message, access.span, help=f"write `{access.word} (a, b)`")
                return None
            if not self.contexts_known(access.contexts):
                return None
            found[access.word] = tuple(name.text for name in access.contexts)
        if node.kind == "stateless" and "reads" not in found:
            return found.get("writes", ()), ()  # a write is reported by the checks of contexts
        return self._defaults(node, op, tree, found)

    def contexts_known(self, names: Sequence[ast.Name]) -> bool:
        """Whether all are contexts; reports each that is none."""
        found = [self.symbols.find(name, "context") for name in names]
        return all(found)

    def _defaults(
        self, node: declarations.Node, op: declarations.OpDecl, tree: ast.Call, found: dict[str, tuple[str, ...]]
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        call = f"`{path_text(tree.callee)}`"
        reading = op.attrs.frozen or op.attrs.cross
        if "reads" in found and (node.kind == "stateless" or not reading):
            span = next(access.span for access in tree.access if access.word == "reads")
            kind = "uses no context" if node.kind == "stateless" else "is not frozen, so it writes its context"
            help_text = "delete the clause" if node.kind == "stateless" else "say `writes` instead"
            self.report.report(rules.MC506, f"{call} {kind}", span, help=help_text, subject=op.name)
            return None
        own = tuple(context.name for context in self.program.contexts if context.cache == node.cache)
        if not op.attrs.frozen and "writes" not in found and len(own) == 1:
            found["writes"] = own
        if op.attrs.frozen and not op.attrs.cross and "reads" not in found and len(own) == 1:
            found["reads"] = own
        needs = [word for word in ("writes", "reads") if word not in found and self._needs(word, op)]
        if needs and not (op.attrs.frozen and "writes" in found):
            if self.symbols.lost & {"cache", "context"}:
                return None  # what could not be parsed may be the one
            why = "attends a source that it must name" if needs == ["reads"] and op.attrs.cross else ""
            why = why or (f"cache `{node.cache}` has " + (f"the contexts {', '.join(own)}" if own else "no context"))
            self.report.report(
                rules.MC004,
                f"{call} does not say which context it {needs[0]}",
                tree.span,
                notes=(f"{call} {why}" if why.startswith("attends") else why,),
                help=f"write `{path_text(tree.callee)}(...) {needs[0]} {own[0] if own else 'CONTEXT'}`",
                subject=op.name,
            )
            return None
        return self._counted(op, tree, found)

    def _needs(self, word: str, op: declarations.OpDecl) -> bool:
        return not op.attrs.frozen if word == "writes" else op.attrs.frozen or op.attrs.cross

    def _counted(
        self, op: declarations.OpDecl, tree: ast.Call, found: dict[str, tuple[str, ...]]
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """A frozen op reads one context, and one more as the source of its cross-attention."""
        reads, due = found.get("reads", ()), op.attrs.frozen + op.attrs.cross
        if len(reads) > due:
            call = path_text(tree.callee)
            message = f"`{call}` reads {due} context{'s' if due > 1 else ''}, {len(reads)} are named"
            self.report.report(rules.MC004, message, tree.span, subject=op.name)
            return None
        return found.get("writes", ()), reads
