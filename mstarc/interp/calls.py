"""Op calls and draws of one request: how many entries a call takes, at which positions, on which contexts, with which key."""

from __future__ import annotations

from typing import Any

from mstarc.interp.contexts import Contexts
from mstarc.interp.errors import ExecutionError
from mstarc.interp.machine import DrawKey, Machine, OpRun, SamplerState
from mstarc.interp.scope import Frame, RequestScope, bind_dims, checked_length
from mstarc.ir.core import Invoke, Program, Sample
from mstarc.ir.declarations import Node, OpDecl, Port
from mstarc.ir.fold import ABSENT, ID_LISTS, FoldError, flat_ids, fold
from mstarc.ir.types import Expr, Ref, Tensor, Type


class Calls:
    """Contexts, sampler histories and drawing counters of one request."""

    def __init__(self, program: Program, machine: Machine, scope: RequestScope, seed: int) -> None:
        self._machine, self._scope, self._seed = machine, scope, seed
        self._nodes = {node.name: node for node in program.nodes}
        self._samplers = {sampler.name: sampler for sampler in program.samplers}
        self._draws: dict[tuple[str, str], int] = {}
        self.histories: dict[str, list[int]] = {name: [] for name in self._samplers}
        self.cells: dict[str, dict[str, Any]] = {}
        self.contexts = Contexts(machine)
        for context in program.contexts:
            on = context.when is None or bool(fold(context.when, scope))
            self.contexts.declare(context, on, None if context.max is None else fold(context.max, scope))

    # -------------------------------------------------------------------------------------------------------------- draws

    def key(self, walk: str, site: str) -> DrawKey:
        """The key of the next execution of a drawing site, in program order."""
        index = self._draws.get((walk, site), 0)
        self._draws[walk, site] = index + 1
        return DrawKey(self._seed, walk, site, index)

    def sampler(self, name: str) -> SamplerState:
        sampler = self._samplers[name]
        settings = {key: fold(value, self._scope) for key, value in sampler.settings}
        settings |= {key: flat_ids(value) for key, value in settings.items() if key in ID_LISTS}
        over = list(self.contexts[sampler.over].ids) if sampler.over else []
        return SamplerState(name, settings, self.histories[name], over)

    def sample(self, op: Sample, frame: Frame) -> Any:
        """One draw; its id joins the sampler's history here, whether or not it is used."""
        logits = frame.eval(op.logits)
        if logits is ABSENT:
            raise ExecutionError(f"walk `{frame.walk}`: sampler `{op.sampler}` draws from absent logits")
        return self._draw(op.sampler, logits, frame.walk, op.site)

    def _draw(self, sampler: str, logits: Any, walk: str, site: str) -> Any:
        token = self._machine.sample(logits, self.sampler(sampler), self.key(walk, site))
        self.histories[sampler].append(int(self._machine.host(token)))
        return token

    # ---------------------------------------------------------------------------------------------------------------- ops

    def invoke(self, op: Invoke, frame: Frame) -> tuple[Any, ...]:
        """The results of one call: those of the first run (of a context that is on); all absent if there is none."""
        node = self._nodes[op.node]
        decl = next(d for d in node.ops if d.name == op.op)
        args = tuple(ABSENT if arg is None else frame.eval(arg) for arg in op.args)
        args = tuple(
            self._machine.host(a) if port.host and a is not ABSENT else a
            for a, port in zip(args, decl.params, strict=True)
        )
        nothing = (ABSENT,) * len(decl.results)
        if not all(self.contexts[name].on for name in op.reads):
            return nothing
        scope = OpScope(frame, node.name, decl, args)
        takes = self._takes(node, decl, scope) if node.kind == "transformer" else 0
        if node.kind == "transformer" and takes == 0:
            return nothing
        key = self.key(frame.walk, f"{op.node}.{op.op}") if decl.attrs.random else None
        targets = op.writes or (op.reads[:1] if node.kind == "transformer" else ("",))
        runs = [self._run(op, decl, scope, takes, key, name) for name in targets]
        return next((results for results in runs if results is not None), nothing)

    def _run(self, op: Invoke, decl: OpDecl, scope: OpScope, takes: int, key: DrawKey | None, context: str) -> Any:
        """One run on one context ("" = none); None if it is switched off."""
        samples = decl.attrs.samples
        sampler = self.sampler(samples) if samples else None
        draw = (lambda logits: self._draw(samples, logits, scope.walk, samples)) if samples else None
        cells = self._cells(op.node, scope)
        args = tuple(None if arg is ABSENT else arg for arg in scope.args)
        if not context:
            return self._results(
                OpRun(op.node, decl, args, scope.shapes(), key=key, sampler=sampler, draw=draw, cells=cells)
            )
        state = self.contexts[context]
        if not state.on:
            return None
        source = op.reads[-1] if decl.attrs.cross else ""
        run = OpRun(
            op.node,
            decl,
            args,
            scope.shapes(),
            state.store,
            state.length,
            takes,
            self._positions(decl, scope, state.position, takes),
            self.contexts[source].store if source else None,
            key,
            sampler,
            draw,
            cells,
        )
        results = self._results(run)
        if not decl.attrs.frozen:
            self.contexts.wrote(context, takes, self._advance(decl, scope, takes), self._ids(decl, scope, takes))
        return results

    def _cells(self, name: str, scope: OpScope) -> dict[str, Any]:
        """The node's cells in this request, made on its first call."""
        cells = self.cells.get(name)
        if cells is None:
            cells = self.cells[name] = {}
            for state in self._nodes[name].states:
                dims = state.type.dims if isinstance(state.type, Tensor) else ()
                sizes = tuple(checked_length(scope.eval(dim), dim, f"cell `{name}.{state.name}`") for dim in dims)
                cells[state.name] = self._machine.cell(state.type, sizes, scope.eval(state.init))
        return cells

    def _results(self, run: OpRun) -> tuple[Any, ...]:
        results = self._machine.invoke(run)
        if len(results) != len(run.decl.results):
            raise ExecutionError(
                f"op `{run.node}.{run.decl.name}` gave {len(results)} results, {len(run.decl.results)} are declared"
            )
        return results

    # ----------------------------------------------------------------------------------------------- entries and positions

    def _takes(self, node: Node, decl: OpDecl, scope: OpScope) -> int:
        if decl.attrs.takes is not None:
            return checked_length(
                scope.eval(decl.attrs.takes), decl.attrs.takes, f"`takes` of op `{node.name}.{decl.name}`"
            )
        token = _token_input(decl)
        if token is None:
            raise ExecutionError(f"op `{node.name}.{decl.name}` does not say how many entries it takes")
        return len(self._ids(decl, scope, 0))

    def _ids(self, decl: OpDecl, scope: OpScope, takes: int) -> list[int]:
        """The token ids that the call appends: those of its token input, if it has one."""
        token = _token_input(decl)
        if token is None or (decl.attrs.takes is not None and takes != scope.rows(token)):
            return []
        return flat_ids(self._machine.host(scope.args[token]))

    def _positions(self, decl: OpDecl, scope: OpScope, counter: int, takes: int) -> Any:
        match decl.attrs.positions:
            case "same":
                return [counter] * takes
            case "at":
                assert decl.attrs.at is not None
                offsets = self._machine.host(scope.eval(decl.attrs.at))
                rows = offsets.tolist() if hasattr(offsets, "tolist") else offsets
                rows = [rows] if rows and isinstance(rows[0], int) else rows
                found = [[counter + x for x in row] for row in rows]
                if any(len(row) != takes for row in found):
                    raise ExecutionError(f"op `{decl.name}` takes {takes} entries, its positions are {len(found[0])}")
                return found[0] if len(found) == 1 else found
            case _:
                return list(range(counter, counter + takes))

    def _advance(self, decl: OpDecl, scope: OpScope, takes: int) -> int:
        if decl.attrs.advance is not None:
            return int(scope.eval(decl.attrs.advance))
        return 0 if decl.attrs.positions == "same" else takes


def _token_input(decl: OpDecl) -> int | None:
    """Index of the token input: the first `i64` or `i64[free]` parameter that is not host."""
    for k, port in enumerate(decl.params):
        if not port.host and isinstance(port.type, Tensor) and port.type.dtype == "i64" and not port.type.optional:
            dims = port.type.dims
            if not dims or (len(dims) == 1 and isinstance(dims[0], Ref) and dims[0].scope == "dim"):
                return k
    return None


class OpScope:
    """The scope of an op's attributes and types: its free dims from the arguments, its host parameters by name."""

    def __init__(self, frame: Frame, node: str, decl: OpDecl, args: tuple[Any, ...]) -> None:
        self._frame, self._node, self._decl, self.args = frame, node, decl, args
        self.walk = frame.walk
        self._dims: dict[str, Any] = {}
        for port, arg in zip(decl.params, args, strict=True):
            bind_dims(port.type, arg, frame.machine, self._dims)
        self._dims |= {port.name: arg for port, arg in zip(decl.params, args, strict=True) if port.host}

    def ref(self, ref: Ref) -> Any:
        if ref.scope != "dim":
            return self._frame.request.ref(ref)
        if ref.name not in self._dims:
            raise FoldError(f"`{ref.name}` of op `{self._decl.name}` has no value")
        return self._dims[ref.name]

    def var(self, ident: int) -> Any:
        raise FoldError(f"%{ident} in an op's declaration")

    def field(self, ident: int, name: str) -> Any:
        raise FoldError(f"%{ident} in an op's declaration")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        return self._frame.apply(fn, args)

    def eval(self, expr: Any) -> Any:
        try:
            return fold(expr, self)
        except FoldError as error:
            raise ExecutionError(str(error)) from error

    def rows(self, param: int) -> int:
        shape = self._frame.machine.shape(self.args[param])
        return shape[0] if shape else 1

    def shapes(self) -> tuple[tuple[int | None, ...], ...]:
        return tuple(self._shape(port) for port in self._decl.results)

    def _shape(self, port: Port) -> tuple[int | None, ...]:
        kind: Type = port.type
        return tuple(self._dim(d, port.name) for d in kind.dims) if isinstance(kind, Tensor) else ()

    def _dim(self, dim: Expr, port: str) -> int | None:
        try:
            found = fold(dim, self)
        except FoldError:
            return None
        return checked_length(found, dim, f"result `{port}` of op `{self._node}.{self._decl.name}`")
