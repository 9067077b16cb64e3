"""Loops of walks: carried and collected names, `stop when`. Takes loop trees; gives `Loop`, `Stop` and `Collect`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Label
from mstarc.ir import core
from mstarc.ir.types import Binary, Expr, Lit, Ref, Scalar, Tensor, Type, Var
from mstarc.ir.visit import every_expr
from mstarc.passes.lower.calls import without_vars
from mstarc.passes.lower.scope import Binding
from mstarc.passes.lower.typed import Typed, as_tensor, content, is_optional, is_truth, number_of, poison, type_text
from mstarc.passes.lower.walk_calls import WalkCalls
from mstarc.source import Span
from mstarc.syntax import ast


@dataclass
class Collected:
    """What goes into one collected name."""

    gather: core.Gather
    item: Tensor
    first: Span
    every: bool  # one value in each iteration, so far


@dataclass
class LoopScope:
    """A loop whose body is being lowered. `rebound`: carried names that the body has bound again."""

    label: str
    carried: tuple[str, ...]
    places: int  # how many blocks are around its body
    frames: int  # how many scopes of names there are in its body
    gathers: dict[str, Collected] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)
    stops: bool = False


class WalkLoops(WalkCalls):
    """The loops of a walk."""

    loops: list[LoopScope]
    labels: dict[str, Span]
    _outer_parallel: list[list[dict[str, Span]]]

    def may_rebind(self, name: str) -> bool:
        if not self.loops or name not in self.loops[-1].carried or name in self.loops[-1].rebound:
            return False
        self.loops[-1].rebound.add(name)
        return True

    def loop(self, tree: ast.Loop) -> None:
        """`loop NAME times|max E carry ... { }`."""
        self._label(tree.label)
        bound = self.expressions.number(tree.bound, f"the bound of loop `{tree.label.text}`")
        if number_of(bound.type) == "float":
            self.expressions.mismatch(f"the bound of loop `{tree.label.text}` is a float", bound.span)
        inits = [self._init(carry, tree.label.text) for carry in tree.carries]
        first_inner = len(self.values.types)
        scope = LoopScope(
            tree.label.text,
            tuple(carry.name.text for carry in tree.carries),
            len(self.places),
            len(self.names.frames) + 1,
        )
        with self.block(f"loop `{tree.label.text}`") as ops:
            inners = self._enter(tree, inits, scope)
            self.statements(tree.body)
            self.parallel, self.loops = self._outer_parallel.pop(), self.loops[:-1]
            self.depth -= 1
            carried = list(zip(tree.carries, inits, inners, strict=True))
            nexts = [self._next_value(carry, init, inner, scope) for carry, init, inner in carried]
        carries = [
            core.Carry(init.expr, inner, following, self._result(carry, inner, first_inner))
            for (carry, init, inner), following in zip(carried, nexts, strict=True)
        ]
        gathers = [
            self._gathered(name, found, tree, bound, scope, first_inner) for name, found in scope.gathers.items()
        ]
        kind = tree.kind
        body = core.Block(tuple(ops))
        made = core.Loop(tree.label.text, kind, bound.expr, tuple(carries), tuple(gathers), body, span=tree.span)
        self.ops.append(made)

    def _enter(self, tree: ast.Loop, inits: list[Typed], scope: LoopScope) -> list[core.Value]:
        """Begin the body: its carried names are bound at the top."""
        self.depth += 1
        self._outer_parallel.append(self.parallel)
        self.parallel = []
        self.loops = [*self.loops, scope]
        inners = []
        for carry, init in zip(tree.carries, inits, strict=True):
            inner = self.values.make(carry.name.text, as_tensor(init.type), "device", carry.name.span)
            if carry.name.text in self.names.frames[-1]:
                message = f"loop `{scope.label}` carries `{carry.name.text}` twice"
                self.report.report(rules.MC003, message, carry.name.span, subject=carry.name.text)
            self.names.bind(carry.name.text, Binding(inner, self.depth))
            inners.append(inner)
        return inners

    def _label(self, label: ast.Name) -> None:
        first = self.labels.get(label.text)
        symbol = self.symbols.table.get(label.text)
        if first is not None or symbol is not None:
            at = first if first is not None else symbol.span if symbol is not None else label.span
            other = "another loop" if first is not None else f"a {symbol.kind}" if symbol is not None else ""
            self.report.report(
                rules.MC001,
                f"`{label.text}` is the name of {other}",
                label.span,
                "loops are named once",
                secondary=(Label(at, "declared here"),),
                subject=label.text,
            )
        self.labels[label.text] = label.span

    # ------------------------------------------------------------------------------------------------------- carried names

    def _init(self, carry: ast.Carry, label: str) -> Typed:
        """The value that a carried name has before the first iteration."""
        name = carry.name
        if name.text != "_" and not self.symbols.allowed(name):
            return poison(name.span, "device")
        if carry.init is not None:
            init = self.expressions.value(carry.init)
            if self.names.find(name.text) is not None or name.text in self.symbols.table:
                self.check_free(name)
        else:
            binding = self.names.find(name.text)
            if binding is None:
                self._no_init(name, label)
                return poison(name.span, "device")
            kind = self.values.type_of(binding.value)
            init = self.expressions.there(Typed(Var(binding.value.id), kind, binding.value.phase, name.span))
            self._rebinds(name, binding)
        kind = content(init.type)
        if kind is not None and not isinstance(kind, Tensor) and number_of(kind) is None:
            message = f"loop `{label}` carries `{name.text}`, which is {type_text(kind)} and no tensor"
            self.report.report(rules.MC203, message, init.span, subject=name.text)
            return poison(name.span, "device")
        return replace(init, type=kind)

    def _no_init(self, name: ast.Name, label: str) -> None:
        if name.text in self.names.gone:
            self.lookup(name)
            return
        self.report.report(
            rules.MC202,
            f"loop `{label}` carries `{name.text}`, which has no initial value",
            name.span,
            help=f"bind it before the loop, or write `carry {name.text} = ...`",
            subject=name.text,
        )

    def _rebinds(self, name: ast.Name, binding: Binding) -> None:
        """After the loop the name is the loop's result, which is a new binding of it where the loop stands."""
        if self.loops and name.text in self.loops[-1].carried and not self.may_rebind(name.text):
            self.bound_twice(name, binding)

    def _next_value(self, carry: ast.Carry, init: Typed, inner: core.Value, scope: LoopScope) -> Expr:
        """The value that a carried name has at the end of the body, checked against the initial one."""
        name = carry.name.text
        binding = self.names.find(name)
        assert binding is not None
        value = binding.value
        kind = content(self.values.type_of(value))
        if value.id == inner.id:
            self._not_rebound(carry, scope)
        elif is_optional(kind):
            self.report.report(
                rules.MC202,
                f"loop `{scope.label}` does not rebind `{name}` on every path",
                value.span,
                "bound under `when`",
                secondary=(Label(carry.name.span, f"`{name}` is carried from one iteration to the next"),),
                notes=("the next iteration would wait for a value that never arrives",),
                subject=name,
            )
        elif kind is not None:
            self._one_type(carry, init, inner, value, kind, scope)
        return Var(value.id)

    def _not_rebound(self, carry: ast.Carry, scope: LoopScope) -> None:
        name = carry.name.text
        self.report.report(
            rules.MC202,
            f"loop `{scope.label}` does not rebind `{name}`",
            carry.name.span,
            f"`{name}` is carried from one iteration to the next",
            help=f"bind `{name}` in the body, or leave it out of `carry`",
            subject=name,
        )

    def _one_type(
        self, carry: ast.Carry, init: Typed, inner: core.Value, value: core.Value, kind: Type, scope: LoopScope
    ) -> None:
        """MC203: a carried value lives in one buffer."""
        first, following = as_tensor(init.type), as_tensor(kind)
        if first is None:
            self.values.types[inner.id] = following
            return
        plain = isinstance(init.type, Scalar) and isinstance(following, Tensor) and not following.dims
        if plain and number_of(init.type) == number_of(following):
            self.values.types[inner.id] = following
            return
        assert isinstance(first, Tensor)
        alike = isinstance(following, Tensor) and first.dtype == following.dtype and self.dims.same(first, following)
        if not alike:
            texts = [type_text(self.dims.resolved(k)) for k in (first, kind)]
            self.report.report(
                rules.MC203,
                f"`{carry.name.text}` enters loop `{scope.label}` as {texts[0]} and leaves its body as {texts[1]}{self.dims.why()}",
                value.span,
                f"bound as {texts[1]}",
                secondary=(Label(carry.name.span, f"carried as {texts[0]}"),),
                subject=carry.name.text,
            )

    def _result(self, carry: ast.Carry, inner: core.Value, first_inner: int) -> core.Value:
        kind = self._outside(self.values.type_of(inner), first_inner)
        result = self.values.make(carry.name.text, kind, "device", carry.name.span)
        self.names.bind(carry.name.text, Binding(result, self.depth))
        return result

    def _outside(self, kind: Type | None, first_inner: int) -> Type | None:
        """A type without dims that read values of the body."""

        def hidden(dim: Expr) -> bool:
            parts = list(every_expr(dim))
            iters = any(isinstance(part, Ref) and part.scope == "iter" for part in parts)
            return iters or any(isinstance(part, Var) and part.id >= first_inner for part in parts)

        return None if kind is None else without_vars(kind, hidden, self.dims)

    # ----------------------------------------------------------------------------------------------- stops and collections

    def stop(self, tree: ast.Stop) -> None:
        """`stop when E`: the one place, besides a stream's `where`, where a device value decides."""
        cond = self.expressions.exit_flag(tree.cond)
        if not is_truth(cond.type):
            text = type_text(cond.type)
            self.report.report(rules.MC205, f"`stop when` tests {text}, not a bool", cond.span, f"this is {text}")
        if not self.loops:
            message = "`stop when` ends a loop, and there is none around it"
            self.report.report(
                rules.MC205, message, tree.span, help="a walk ends with its last statement; `when` guards one"
            )
            return
        self.loops[-1].stops = True
        bindings = [self.names.find(name) for name in self.loops[-1].carried]
        carried = tuple(Var(binding.value.id) for binding in bindings if binding is not None)
        self.ops.append(core.Stop(cond.expr, carried, span=tree.span))

    def collect(self, tree: ast.Collect) -> None:
        """`collect E as NAME`."""
        value = self.expressions.value(tree.value)
        into = tree.name
        if not self.loops:
            self.report.report(rules.MC206, "`collect` stands in a loop, and there is none around it", tree.span)
            return
        loop = self.loops[-1]
        if into.text in loop.carried:
            message = f"`{into.text}` is both carried and collected by loop `{loop.label}`"
            self.report.report(rules.MC206, message, into.span, subject=into.text)
            return
        item = as_tensor(content(value.type)) or Tensor("i64")
        if not isinstance(item, Tensor):
            self.expressions.mismatch(f"{type_text(item)} cannot be collected", value.span)
            return
        known = loop.gathers.get(into.text)
        if known is None:
            made = self.values.make(into.text, None, "device", into.span)
            every = len(self.places) == loop.places + 1 and len(self.names.frames) == loop.frames
            loop.gathers[into.text] = Collected(core.Gather(into.text, made), item, into.span, every)
        else:
            known.every = False
            if item.dtype != known.item.dtype or not self.dims.same(item, known.item):
                message = f"`{into.text}` collects {type_text(known.item)} and {type_text(item)}{self.dims.why()}"
                self.expressions.mismatch(message, value.span)
        self.ops.append(core.Collect(value.expr, into.text, span=tree.span))

    def _gathered(
        self, name: str, found: Collected, tree: ast.Loop, bound: Typed, scope: LoopScope, first_inner: int
    ) -> core.Gather:
        """The collected name after the loop: along dim 0, as long as the loop says if that is certain."""
        item = found.item
        length: Expr = self.dims.fresh(f"n_{name}")
        rest = item.dims[1:]
        if tree.kind == "times" and found.every and not scope.stops:
            if not item.dims:
                length = bound.expr
            elif isinstance(item.dims[0], Lit):
                length = Binary("*", bound.expr, item.dims[0])
        self.values.types[found.gather.result.id] = self._outside(Tensor(item.dtype, (length, *rest)), first_inner)
        self.check_free(ast.Name(name, found.first))
        self.names.bind(name, Binding(found.gather.result, self.depth))
        return found.gather
