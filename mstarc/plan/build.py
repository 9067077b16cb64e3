"""From a checked program and its binding to a plan. Pure: the same inputs give the same plan, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from msgspec import to_builtins

from mstarc import __version__
from mstarc.binding_file import Binding
from mstarc.ir.core import CallWalk, Extern, ForParts, Invoke, Loop, Program, Request, Walk
from mstarc.ir.declarations import OpAttrs, OpDecl, Port, Stream
from mstarc.ir.text import print_expr, print_type, print_walk
from mstarc.ir.types import Expr, Struct, Var
from mstarc.ir.visit import every_op
from mstarc.passes.effects import Effect, Names, effects_of
from mstarc.passes.form_regions import Region, form_regions
from mstarc.passes.fuse_vertical import Fusion, vertical_of
from mstarc.passes.loop_regions import whole_loop_of
from mstarc.passes.speculate import speculation_of
from mstarc.passes.transitions import Chain, chains_of, walks_before
from mstarc.plan.model import (
    FORMAT,
    BarPlan,
    BindingPlan,
    CachePlan,
    ConfigPlan,
    ContextPlan,
    FusionPlan,
    LoopPlan,
    NodePlan,
    OpPlan,
    ParamPlan,
    PhasePlan,
    Plan,
    PortPlan,
    RequestPlan,
    SamplerPlan,
    SpecPlan,
    StatePlan,
    StreamPlan,
    WalkPlan,
)
from mstarc.source import SourceFile
from mstarc_runtime.abi.messages import ABI


def build_plan(program: Program, binding: Binding, spec: SpecPlan, source: SourceFile) -> Plan:
    """The plan, still without the digests of the generated files."""
    before, chains, usual = walks_before(program), chains_of(program), _usual(program, binding)
    return Plan(
        format=FORMAT,
        abi=ABI,
        compiler=__version__,
        model=program.model,
        spec=spec,
        binding=_binding(binding),
        configs=[ConfigPlan(name=c.name, path=c.path, expr=_text(c.expr)) for c in program.configs],
        params=[
            ParamPlan(
                name=p.name, type=print_type(p.type), low=_text(p.low), high=_text(p.high), default=_text(p.default)
            )
            for p in program.params
        ],
        caches=[
            CachePlan(
                name=c.name,
                layers=print_expr(c.layers),
                heads=print_expr(c.heads),
                kv_heads=print_expr(c.kv_heads),
                head_dim=print_expr(c.head_dim),
            )
            for c in program.caches
        ],
        contexts=[
            ContextPlan(name=c.name, cache=c.cache, max=_text(c.max), when=_text(c.when)) for c in program.contexts
        ],
        lets={let.name: print_expr(let.expr) for let in program.lets},
        samplers=[
            SamplerPlan(name=s.name, settings={k: print_expr(v) for k, v in s.settings}, over=s.over)
            for s in program.samplers
        ],
        nodes=[
            NodePlan(
                name=n.name,
                kind=n.kind,
                ops=[_op(o) for o in n.ops],
                cache=n.cache,
                precision=n.precision,
                weights=n.weights,
                states=[StatePlan(name=s.name, type=print_type(s.type), init=print_expr(s.init)) for s in n.states],
            )
            for n in program.nodes
        ],
        streams=[_stream(s) for s in program.streams],
        walks=[_walk(w, program, source, before, usual) for w in program.walks],
        fusions=[_fusion(fusion) for fusion in vertical_of(program)],
        requests=[_request(r, source, chains) for r in program.requests],
        extern_results={e.name: [_port(port) for port in e.results] for e in program.externs},
        parts={kind.name: print_type(replace(kind, optional=False)) for kind in _structs(program)},
    )


def _structs(program: Program) -> Iterator[Struct]:
    """The declared types of values: of params of walks, of `case`s and of externs."""
    kinds = [value.type for walk in program.walks for value in walk.params]
    kinds += [port.type for extern in program.externs for port in (*extern.params, *extern.results)]
    for request in program.requests:
        loops = (op for op in every_op(request.body) if isinstance(op, ForParts))
        kinds += [case.item.type for loop in loops for case in loop.cases if case.item is not None]
    return (kind for kind in kinds if isinstance(kind, Struct))


def _text(expr: Expr | None) -> str:
    return "" if expr is None else print_expr(expr)


def _binding(binding: Binding) -> BindingPlan:
    return BindingPlan(
        config=binding.config,
        checkpoints={name: to_builtins(c) for name, c in binding.checkpoints.items()},
        components={name: to_builtins(c) for name, c in binding.components.items()},
        externs=dict(binding.externs),
        modalities=binding.modalities,
        chat=to_builtins(binding.chat) if binding.chat is not None else {},
    )


def _op(op: OpDecl) -> OpPlan:
    attrs: OpAttrs = op.attrs
    return OpPlan(
        name=op.name,
        params=[_port(port) for port in op.params],
        results=[_port(port) for port in op.results],
        attend=attrs.attend,
        positions=attrs.positions,
        at=_text(attrs.at),
        advance=_text(attrs.advance),
        takes=_text(attrs.takes),
        frozen=attrs.frozen,
        cross=attrs.cross,
        random=attrs.random,
        samples=attrs.samples,
        batch=attrs.batch,
        batch_max=_text(attrs.batch_max),
    )


def _port(port: Port) -> PortPlan:
    return PortPlan(name=port.name, type=print_type(port.type), host=port.host)


def _stream(stream: Stream) -> StreamPlan:
    return StreamPlan(
        name=stream.name,
        item=print_type(stream.item),
        policy=stream.policy,
        args={name: print_expr(value) for name, value in stream.args},
        capacity=print_expr(stream.capacity),
        at_end=stream.at_end,
        after_end_empty=stream.after_end_empty,
        where=f"where_{stream.name}" if stream.where is not None else "",
    )


def _walk(
    walk: Walk,
    program: Program,
    source: SourceFile,
    before: Mapping[str, frozenset[str]],
    usual: Mapping[str, dict[str, str]],
) -> WalkPlan:
    names = Names(program)
    touched = list(effects_of(walk.body, names, walk.name))
    regions = form_regions(walk, program)
    loops = [op for op in every_op(walk.body) if isinstance(op, Loop)]
    return WalkPlan(
        name=walk.name,
        line=source.line_of(walk.span.start),
        nodes=sorted({op.node for op in every_op(walk.body) if isinstance(op, Invoke)}),
        sends=_named(touched, "send"),
        takes=_named(touched, "take"),
        contexts=_named(touched, "context"),
        samplers=_named(touched, "sampler"),
        externs=sorted({op.name for op in every_op(walk.body) if isinstance(op, Extern)}),
        loops=[_loop(walk, loop, regions, names, source) for loop in loops],
        body=print_walk(walk).splitlines(),
        before=sorted(before[walk.name]),
        usual=usual.get(walk.name, {}),
    )


def _loop(walk: Walk, loop: Loop, regions: Mapping[str, Region], names: Names, source: SourceFile) -> LoopPlan:
    ahead = speculation_of(walk, loop, names)
    whole = whole_loop_of(walk, loop, names) if loop.kind == "times" else None
    region = regions.get(loop.label)
    return LoopPlan(
        label=loop.label,
        kind=loop.kind,
        bound=print_expr(loop.bound),
        region=region.method if region else "",
        others=[body.method for body in region.methods()[1:]] if region else [],
        carry=[print_type(kind) for kind in region.carried] if region and not region.ragged else [],
        fixed=[print_type(kind) for kind in region.given] if region and not region.ragged else [],
        ragged=region is not None and region.ragged,
        checks=ahead.device_stops,
        ahead=ahead.legal,
        rollback=list(ahead.rollback),
        bars=[
            BarPlan(text=bar.text, line=source.line_of(bar.span.start), early=bar.early)
            for bar in ahead.bars
            if ahead.device_stops
        ],
        whole=whole is not None and whole.legal,
        conditions=list(whole.conditions) if whole else [],
        variants=list(whole.variants) if whole else [],
        phases=[PhasePlan(holds=list(p.holds), calls=list(p.calls)) for p in whole.phases] if whole else [],
        apart=list(whole.reasons if whole else ahead.reasons),
    )


def _usual(program: Program, binding: Binding) -> dict[str, dict[str, str]]:
    """Walk -> host parameter -> expression, where a request passes what an extern gave and the `cost` section says what that is."""
    found: dict[str, dict[str, str]] = {}
    for request in program.requests:
        given: dict[Expr, str] = {}
        for op in every_op(request.body):
            if isinstance(op, Extern):
                given.update(_usual_results(op, program, binding))
            elif isinstance(op, CallWalk):
                walk = next(w for w in program.walks if w.name == op.walk)
                passed = {p.name: given[arg] for p, arg in zip(walk.params, op.args, strict=True) if arg in given}
                found.setdefault(walk.name, {}).update(passed)
    return found


def _usual_results(op: Extern, program: Program, binding: Binding) -> Iterator[tuple[Expr, str]]:
    """The results of a call of which the `cost` section says how much they usually are: a number or a param."""
    params = {param.name for param in program.params}
    ports = next(e for e in program.externs if e.name == op.name).results
    for value, port in zip(op.results, ports, strict=True):
        text = str(binding.cost.values.get(f"{op.name}.{port.name}", ""))
        if value is not None and (text.isdigit() or text in params):
            yield Var(value.id), text if text.isdigit() else f"param.{text}"


def _fusion(fusion: Fusion) -> FusionPlan:
    return FusionPlan(
        stream=fusion.stream,
        producer=fusion.producer,
        loop=fusion.loop,
        consumer=fusion.consumer,
        unroll=fusion.unroll,
        firings=fusion.firings,
        step_calls=list(fusion.step_calls),
        firing_calls=list(fusion.firing_calls),
        compacts=fusion.compacts,
        apart=list(fusion.reasons),
    )


def _named(effects: Iterable[Effect], kind: str) -> list[str]:
    return sorted({effect.name for effect in effects if effect.kind == kind})


def _request(request: Request, source: SourceFile, chains: Iterable[Chain]) -> RequestPlan:
    return RequestPlan(
        name=request.name,
        line=source.line_of(request.span.start),
        inputs={value.name: print_type(value.type) for value in request.inputs},
        outputs=[name + ("?" if optional else "") for name, optional in request.outputs],
        chains=[list(chain.walks) for chain in chains if chain.request == request.name],
    )
