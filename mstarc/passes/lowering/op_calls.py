"""Calls that only walks have: ops of nodes with their contexts, draws of samplers, and noise."""

from __future__ import annotations

from collections.abc import Sequence

from mstarc.diagnostics import rules
from mstarc.ir import core
from mstarc.ir.types import DTYPES, Tensor, Type
from mstarc.passes.lowering.body import FAILED, Body
from mstarc.passes.lowering.calls import Matcher
from mstarc.passes.lowering.dims import type_text
from mstarc.passes.lowering.expressions import path_text
from mstarc.syntax import ast


class OpCalls(Body):
    """The part of a walk's lowering that makes `Invoke`, `Sample` and `Noise`."""

    def sample(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        if len(tree.args) != 2 or any(arg.name is not None for arg in tree.args):
            self.report.report(
                rules.MC004,
                f"`sample` takes a sampler and logits, {len(tree.args)} arguments are given",
                tree.span,
                help="several contexts stand in parentheses: `writes (a, b)`" if len(tree.args) > 2 else None,
            )
            return self.fail(targets, "device")
        sampler, written = (arg.value for arg in tree.args)
        logits = self.expressions.lower(written)
        named = sampler.names[0] if isinstance(sampler, ast.Path) else ast.Name("?", sampler.span)
        if self.symbols.find(named, "sampler") is None:
            return self.fail(targets, "device")
        if isinstance(logits.type, Tensor) and (
            not logits.type.dtype.endswith(("32", "16")) or len(logits.type.dims) != 1
        ):
            self.report.report(
                rules.MC007, f"`sample` draws from logits [vocab], not from {type_text(logits.type)}", logits.span
            )
        results = self.results([("token", Tensor("i64"))], targets, "device", tree)
        if results is None or results[0] is None:
            return ()
        self.ops.append(core.Sample(named.text, logits.expr, results[0], named.text, span=tree.span))
        return [results[0]]

    def noise(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        kind = self._noise_type(tree)
        results = self.results([("noise", kind)], targets, "device", tree)
        if kind is None or results is None or results[0] is None:
            return ()
        site = targets[0].text if targets else results[0].name
        self.ops.append(core.Noise(results[0], site, span=tree.span))
        return [results[0]]

    def _noise_type(self, tree: ast.Call) -> Tensor | None:
        arg = tree.args[0].value if len(tree.args) == 1 else None
        if isinstance(arg, ast.Path) and path_text(arg) in DTYPES:
            return Tensor(path_text(arg))
        if isinstance(arg, ast.Sub) and isinstance(arg.base, ast.Path) and path_text(arg.base) in DTYPES:
            dims = [self.expressions.host(dim, "a dim").expr for dim in arg.indices if not isinstance(dim, ast.Slice)]
            return Tensor(path_text(arg.base), tuple(dims))
        self.report.report(rules.MC004, "`noise` takes a type, such as `noise(f32[n, 64])`", tree.span)
        return None

    def invoke(self, tree: ast.Call, targets: Sequence[ast.Name] | None) -> Sequence[core.Value]:
        node_name, op_name = tree.callee.names
        if self.symbols.find(node_name, "node") is None:
            return self.fail(targets, "device")
        node = next((node for node in self.program.nodes if node.name == node_name.text), None)
        op = next((op for op in node.ops if op.name == op_name.text), None) if node is not None else None
        if node is None or op is None:
            self.symbols.unknown(
                op_name, f"op of node `{node_name.text}`", [op.name for op in node.ops] if node else ()
            )
            return self.fail(targets, "device")
        matcher = Matcher(self.symbols, self.report, path_text(tree.callee), tree.span, self.loose)
        args = self.arguments(matcher, op.params, tree)
        writes, reads = self._contexts(node, op, tree)
        kinds: list[tuple[str, Type | None]] = [(port.name, self.fresh(matcher, port.type)) for port in op.results]
        if targets is None and not kinds:
            results: list[core.Value | None] | None = []
        else:
            results = self.results(kinds, targets, "device", tree)
        if args is None or results is None:
            return FAILED if targets is None else ()
        self.ops.append(core.Invoke(node.name, op.name, tuple(args), tuple(results), writes, reads, span=tree.span))
        return [value for value in results if value is not None]

    def _contexts(self, node: core.Node, op: core.OpDecl, tree: ast.Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(writes, reads) of a call: as written, or the cache's only context."""
        found: dict[str, tuple[str, ...]] = {}
        for access in tree.access:
            if node.kind == "stateless":
                self.report.report(rules.MC507, f"node `{node.name}` is stateless and has no contexts", access.span)
                return (), ()
            if access.word in found:
                self.report.report(rules.MC507, f"`{access.word}` stands twice", access.span)
            if all(self.symbols.find(name, "context") for name in access.contexts):
                found[access.word] = tuple(name.text for name in access.contexts)
            else:
                return (), ()
        if node.kind == "stateless":
            return (), ()
        own = tuple(context.name for context in self.program.contexts if context.cache == node.cache)
        needed = "reads" if op.attrs.frozen else "writes"
        if needed not in found and len(own) == 1:
            found[needed] = own
        if needed not in found or (op.attrs.cross and "reads" not in found):
            missing = needed if needed not in found else "reads"
            self.report.report(
                rules.MC507,
                f"`{path_text(tree.callee)}` does not say which context it {missing}",
                tree.span,
                help=f"write `{path_text(tree.callee)}(...) {missing} {own[0] if own else 'context'}`",
            )
        return found.get("writes", ()), found.get("reads", ())
