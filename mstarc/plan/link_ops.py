"""Nodes, samplers and streams of a linked program. Each function raises `FoldError` for what has no value or is not built."""

from __future__ import annotations

from typing import Any

from mstarc.ir.fold import FoldError, flat_ids, fold
from mstarc.ir.types import Expr, Ref, Tensor
from mstarc.ir.visit import every_expr
from mstarc.plan.evaluate import ConfigScope, linear, parse_expr, parse_type
from mstarc.plan.model import NodePlan, OpPlan, PortPlan, SamplerPlan, StreamPlan
from mstarc_runtime.abi.linked import NodeLink, OpLink, PortLink, SamplerLink


def link_node(node: NodePlan, component: dict[str, Any], config: dict[str, Any], scope: ConfigScope) -> NodeLink:
    """A node with its class; `config` is its section of the binding, overlaid by the checkpoint's."""
    return NodeLink(
        name=node.name,
        kind=node.kind,
        component=component["class"],
        ops=[_op(node, op, scope) for op in node.ops],
        cache=node.cache,
        checkpoint=component.get("checkpoint", ""),
        weights=node.weights,
        precision=node.precision,
        config=config,
    )


def _op(node: NodePlan, op: OpPlan, scope: ConfigScope) -> OpLink:
    named = f"op `{node.name}.{op.name}`"
    transformer = node.kind == "transformer"
    if op.positions == "at":
        raise FoldError(f"not built yet: {named} with `positions at`")
    if op.samples:  # it would run, and draw from something that no seed reaches
        raise FoldError(f"not built yet: {named} with `samples {op.samples}`")
    return OpLink(
        name=op.name,
        params=[_kind(port) for port in op.params],
        results=len(op.results),
        result_kinds=[_result_kind(port) for port in op.results],
        inputs=_inputs(op, scope),
        outputs=[_port(port, scope) for port in op.results],
        optional=[getattr(parse_type(port.type), "optional", False) for port in op.params],
        attend=op.attend,
        positions=op.positions,
        advance=_advance(named, op, scope),
        takes=_takes(named, op, scope) if transformer else "",
        frozen=op.frozen,
        cross=op.cross,
        random=op.random,
        samples=op.samples,
        batch=op.batch,
        batch_max=scope.number(op.batch_max) if op.batch_max else 0,
    )


def _inputs(op: OpPlan, scope: ConfigScope) -> list[PortLink]:
    """The params with their dims, or nothing if one of them is a host value."""
    return [] if any(_kind(port) == "host" for port in op.params) else [_port(port, scope) for port in op.params]


def _port(port: PortPlan, scope: ConfigScope) -> PortLink:
    kind = parse_type(port.type)
    assert isinstance(kind, Tensor), f"`{port.name}` is no tensor"
    return PortLink(name=port.name, dtype=kind.dtype, dims=[_length(dim, scope) for dim in kind.dims])


def _length(dim: Expr, scope: ConfigScope) -> int | None:
    """A dim as a number; None if it has a free name in it. Raises FoldError."""
    if any(isinstance(part, Ref) and part.scope == "dim" for part in every_expr(dim)):
        return None
    value = fold(dim, scope)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FoldError(f"a length is {value!r}, not a whole number")
    return value


def _kind(port: PortPlan) -> str:
    kind = parse_type(port.type)
    if port.host or not isinstance(kind, Tensor):
        return "host"
    if not kind.dims:
        return "scalar"
    return "packed" if _has_free(kind) else "plain"


def _result_kind(port: PortPlan) -> str:
    kind = parse_type(port.type)
    return "packed" if isinstance(kind, Tensor) and kind.dims and _has_free(kind) else "row"


def _has_free(kind: Tensor) -> bool:
    """Whether the length of the first dim differs from call to call."""
    return any(isinstance(part, Ref) and part.scope == "dim" for part in every_expr(kind.dims[0]))


def _advance(named: str, op: OpPlan, scope: ConfigScope) -> int | None:
    if not op.advance:
        return None
    try:
        return scope.number(op.advance)
    except FoldError:
        raise FoldError(
            f"not built yet: {named} advances its counter by `{op.advance}`, which no config gives"
        ) from None


def _takes(named: str, op: OpPlan, scope: ConfigScope) -> str:
    """`const:n`, `rows:k` or `sum:k,l+n` (see `OpLink`)."""
    if not op.takes:
        return ""
    found = linear(parse_expr(op.takes), scope)
    if found is None or found[1] < 0:
        raise FoldError(f"not built yet: {named} takes `{op.takes}`, which is no sum of lengths and a number")
    names, more = found
    if not names:
        return f"const:{more}"
    ports = [_port_of(named, op, name.name) for name in names]
    if len(ports) == 1 and not more:
        return f"rows:{ports[0]}"
    return f"sum:{','.join(map(str, ports))}+{more}"


def _port_of(named: str, op: OpPlan, dim: str) -> int:
    """The param whose first dim is this free dim."""
    for k, port in enumerate(op.params):
        kind = parse_type(port.type)
        if isinstance(kind, Tensor) and kind.dims and kind.dims[0] == Ref("dim", dim):
            return k
    raise FoldError(f"not built yet: {named} takes `{op.takes}`, but no argument has `{dim}` as its length")


def link_sampler(sampler: SamplerPlan, scope: ConfigScope) -> SamplerLink:
    """Settings as numbers, id lists or `param:<name>`."""
    settings: dict[str, Any] = {}
    for name, text in sorted(sampler.settings.items()):
        if name == "min_tokens":
            raise FoldError(f"not built yet: `min_tokens` of sampler `{sampler.name}`")
        expr = parse_expr(text)
        if isinstance(expr, Ref) and expr.scope == "param":
            settings[name] = f"param:{expr.name}"
            continue
        try:
            value = fold(expr, scope)
        except FoldError as error:
            raise FoldError(f"not built yet: `{name} = {text}` of sampler `{sampler.name}`: {error}") from None
        settings[name] = sorted(set(flat_ids(value))) if name == "suppress" else value
    return SamplerLink(name=sampler.name, settings=settings, over=sampler.over)


def link_stream_args(stream: StreamPlan, scope: ConfigScope) -> dict[str, Any]:
    """The policy's numbers, and the name of the extern that cuts phrases."""
    return {name: fold(parse_expr(text), scope) for name, text in sorted(stream.args.items())}


def stream_capacity(stream: StreamPlan, scope: ConfigScope) -> int | str:
    """A number, or a sum such as `param:max_tokens+1`."""
    found = linear(parse_expr(stream.capacity), scope)
    if found is None:
        raise FoldError(f"not built yet: capacity `{stream.capacity}`, which is no sum of params and a number")
    names, more = found
    if not names:
        return more
    return "+".join([*(f"param:{name.name}" for name in names), *([str(more)] if more else [])])
