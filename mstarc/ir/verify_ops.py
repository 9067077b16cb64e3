"""Rules of the verifier on one operation at its place."""

from __future__ import annotations

from collections.abc import Iterator

from mstarc.ir.core import (
    CallWalk,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Par,
    Program,
    Request,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    When,
)
from mstarc.ir.declarations import OpDecl, Port
from mstarc.ir.types import Apply, Chunk, Expr, FieldOf, Lit, Ref, Tensor, Var
from mstarc.ir.verify_sites import Site, Visible
from mstarc.ir.visit import every_expr, exprs_of, parts_of, vars_of

IN_WALKS = (Invoke, Sample, Noise, Loop, Stop, Collect, Par, When, Emit, Send, Next, ForChunks, Fork, Drop)
IN_REQUESTS = (CallWalk, If, ForParts, Together, Require)
CHUNK_FIELDS = ("new", "index", "first", "tail")


def visible(site: Site) -> Iterator[str]:
    for expr in exprs_of(site.op):
        yield from (f"%{v} is not visible" for v in vars_of(expr) if v not in site.visible)
    if isinstance(site.op, Loop):
        for carry in site.op.carries:
            yield from (
                f"%{v}, carried to the next iteration, is not visible at the end of the body"
                for v in vars_of(carry.next)
                if v not in site.inner[0]
            )


def place(site: Site) -> Iterator[str]:
    within = IN_REQUESTS if isinstance(site.unit.of, Request) else IN_WALKS
    if not isinstance(site.op, (*within, Compute, Extern)) and not (
        isinstance(site.unit.of, Request) and isinstance(site.op, When)
    ):
        yield f"`{type(site.op).__name__}` may not stand here"


# -------------------------------------------------------------------------------------------------------- declared names


def op_of(program: Program, invoke: Invoke) -> OpDecl | None:
    """The declaration of the op that is called."""
    ops = (op for node in program.nodes if node.name == invoke.node for op in node.ops)
    return next((op for op in ops if op.name == invoke.op), None)


def _names(program: Program, kind: str) -> set[str]:
    return {item.name for item in getattr(program, kind)}


def _used(site: Site) -> Iterator[tuple[str, str]]:
    """(kind, name) of what the operation refers to."""
    match site.op:
        case Invoke(writes=writes, reads=reads):
            yield from (("contexts", name) for name in (*writes, *reads))
        case Sample(sampler=name):
            yield "samplers", name
        case Extern(name=name):
            yield "externs", name
        case Send(stream=name):
            yield "streams", name
        case Next(streams=names) | ForChunks(streams=names):
            yield from (("streams", name) for name in names)
        case Fork(target=target, source=source):
            yield from (("contexts", target), ("contexts", source))
        case Drop(contexts=names):
            yield from (("contexts", name) for name in names)
        case CallWalk(walk=name):
            yield "walks", name
    scopes = {"config": "configs", "param": "params", "let": "lets"}
    for expr in exprs_of(site.op):
        for part in every_expr(expr):
            if isinstance(part, Ref) and part.scope in scopes:
                yield scopes[part.scope], part.name


def declared(site: Site) -> Iterator[str]:
    program = site.unit.program
    for kind, name in _used(site):
        if name not in _names(program, kind):
            yield f"`{name}` is not among the {kind}"
    if isinstance(site.op, Invoke) and op_of(program, site.op) is None:
        yield f"there is no op `{site.op.node}.{site.op.op}`"


# ------------------------------------------------------------------------------------------------------------------ arity


def arity(site: Site) -> Iterator[str]:
    op, program = site.op, site.unit.program
    match op:
        case Invoke():
            decl = op_of(program, op)
            if decl is not None:
                yield from _count(len(op.args), len(decl.params), "arguments")
                yield from _count(len(op.results), len(decl.results), "results")
                yield from _left_out(op, decl)
        case Extern():
            for extern in program.externs:
                if extern.name == op.name:
                    yield from _count(len(op.args), len(extern.params), "arguments")
                    yield from _count(len(op.results), len(extern.results), "results")
        case CallWalk():
            for walk in program.walks:
                if walk.name == op.walk:
                    yield from _count(len(op.args), len(walk.params), "arguments")
                    yield from _count(len(op.results), len(walk.outputs), "results")
        case Next():
            yield from _count(len(op.results), len(op.streams), "results")
        case ForChunks():
            yield from _count(len(op.items), len(op.streams), "items")


def _count(found: int, due: int, what: str) -> Iterator[str]:
    if found != due:
        yield f"{found} {what}, not {due}"


def _left_out(op: Invoke, decl: OpDecl) -> Iterator[str]:
    for arg, param in zip(op.args, decl.params, strict=False):
        if arg is None and not getattr(param.type, "optional", False):
            yield f"`{param.name}` is left out but not optional"


# ------------------------------------------------------------------------------------------------------------------ phase


def device_vars(expr: Expr, scope: Visible) -> Iterator[int]:
    """Device values whose *content* the expression reads. Lengths, presence and a chunk's fields are host facts."""
    if isinstance(expr, Apply) and expr.fn in ("len", "present"):
        return
    if isinstance(expr, FieldOf) and isinstance(expr.base, Var) and expr.name in CHUNK_FIELDS:
        value = scope.get(expr.base.id)
        if value is not None and isinstance(value.type, Chunk):
            return
    if isinstance(expr, Var) and expr.id in scope and scope[expr.id].phase == "device":
        yield expr.id
    for part in parts_of(expr):
        yield from device_vars(part, scope)


def phase(site: Site) -> Iterator[str]:
    for what, expr in _host_exprs(site):
        yield from (f"{what} reads the device value %{v}" for v in device_vars(expr, site.visible))
    match site.op:
        case Compute(result=result, expr=expr):
            device = any(True for _ in device_vars(expr, site.visible))
            if device != (result.phase == "device"):
                yield f"%{result.id} is {result.phase}, its expression is not"
        case Extern(results=results):
            yield from (f"%{v.id} of an extern is not host" for v in results if v is not None and v.phase != "host")
        case Invoke(results=results) | Next(results=results):
            yield from (f"%{v.id} is not a device value" for v in results if v is not None and v.phase != "device")
        case Sample(result=result) | Noise(result=result) if result.phase != "device":
            yield f"%{result.id} is not a device value"


def _host_exprs(site: Site) -> Iterator[tuple[str, Expr]]:
    match site.op:
        case Loop(bound=expr):
            yield "the bound", expr
        case When(cond=expr) | If(cond=expr) | Require(cond=expr):
            yield "the condition", expr
        case ForParts(over=expr):
            yield "the list of parts", expr
        case Emit(attrs=attrs):
            yield from ((f"the attribute `{name}`", expr) for name, expr in attrs)
        case Invoke() as op:
            decl = op_of(site.unit.program, op)
            ports: tuple[Port, ...] = decl.params if decl else ()
            for arg, port in zip(op.args, ports, strict=False):
                if arg is not None and port.host:
                    yield f"the host argument `{port.name}`", arg


# --------------------------------------------------------------------------------------------------------------- contexts


def contexts(site: Site) -> Iterator[str]:
    op, program = site.op, site.unit.program
    if isinstance(op, Fork):
        found = {c.name: c.cache for c in program.contexts}
        if found.get(op.target) != found.get(op.source):
            yield f"`{op.target}` and `{op.source}` are of different caches"
    decl = op_of(program, op) if isinstance(op, Invoke) else None
    if not isinstance(op, Invoke) or decl is None:
        return
    node = next(n for n in program.nodes if n.name == op.node)
    if node.kind == "stateless":
        if op.writes or op.reads:
            yield "a stateless op has no context"
        return
    if decl.attrs.frozen == bool(op.writes):
        yield "a frozen op writes" if op.writes else "an op that is not frozen writes no context"
    if (decl.attrs.frozen or decl.attrs.cross) != bool(op.reads):
        yield "reads a context" if op.reads else "reads no context"
    own = op.writes or op.reads[:1]
    for context in program.contexts:
        if context.name in own and context.cache != node.cache:
            yield f"`{context.name}` is on `{context.cache}`, the node on `{node.cache}`"


# ------------------------------------------------------------------------------------------------------- loops and branches


def loops(site: Site) -> Iterator[str]:
    op, inmost = site.op, site.loops[-1] if site.loops else None
    if isinstance(op, (Stop, Collect)) and inmost is None:
        yield "there is no loop around it"
    elif isinstance(op, Stop) and inmost is not None:
        yield from _count(len(op.carried), len(inmost.carries), "carried values")
    elif isinstance(op, Collect) and inmost is not None and op.name not in [g.name for g in inmost.gathers]:
        yield f"loop `{inmost.label}` gathers no `{op.name}`"
    around = [loop.label for loop in site.loops]
    exprs = list(exprs_of(op))
    if isinstance(op, Loop):
        yield from (
            f"gathers `{g.name}` twice" for i, g in enumerate(op.gathers) if g.name in [h.name for h in op.gathers[:i]]
        )
        exprs = [op.bound, *(c.init for c in op.carries)]
    for expr in exprs:
        for part in every_expr(expr):
            if isinstance(part, Ref) and part.scope == "iter" and part.name not in around:
                yield f"`iter` of `{part.name}`, which is no loop around it"


def phis(site: Site) -> Iterator[str]:
    if not isinstance(site.op, When):
        return
    for phi in site.op.results:
        if phi.inner not in site.inner[0] or phi.inner in site.visible:
            yield f"%{phi.inner} is not defined in the block"
        if not getattr(phi.result.type, "optional", False):
            yield f"%{phi.result.id} `{phi.result.name}` is not optional"


# ------------------------------------------------------------------------------------------------------------------ types


def draws(site: Site) -> Iterator[str]:
    """A draw is from one row of logits. What an index or a calculation gives is not typed here."""
    if not isinstance(site.op, Sample):
        return
    logits = site.op.logits
    kind = site.visible[logits.id].type if isinstance(logits, Var) and logits.id in site.visible else None
    if isinstance(logits, (Lit, Ref)) or (kind is not None and not (isinstance(kind, Tensor) and len(kind.dims) == 1)):
        yield "what it draws from is not a row of logits"


def carries(site: Site) -> Iterator[str]:
    """A carried name has one type: before, inside and after its loop."""
    if not isinstance(site.op, Loop):
        return
    for carry in site.op.carries:
        if carry.inner.type != carry.result.type:
            yield f"%{carry.inner.id} `{carry.inner.name}` has another type after the loop"
