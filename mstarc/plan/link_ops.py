"""Nodes, samplers and streams of a linked program. Each function raises `FoldError` for what has no value or is not built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstarc.ir.fold import ID_LISTS, FoldError, flat_ids, fold
from mstarc.ir.types import Expr, Parts, Ref, Scalar, Struct, Tensor, Type
from mstarc.ir.visit import every_expr
from mstarc.plan.evaluate import ConfigScope, linear, parse_expr, parse_type
from mstarc.plan.model import NodePlan, OpPlan, PortPlan, SamplerPlan, StatePlan, StreamPlan
from mstarc.plan.opened import Opened
from mstarc_runtime.abi.formula import Formula
from mstarc_runtime.abi.linked import NodeLink, OpLink, PortLink, SamplerLink, StateLink


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
        rules=component.get("weights", []),
        precision=node.precision,
        states=[_state(node, state, scope) for state in node.states],
        config=config,
    )


def _op(node: NodePlan, op: OpPlan, scope: ConfigScope) -> OpLink:
    transformer = node.kind == "transformer"
    opened = Opened(scope, op)
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
        at=opened.formula(op.at) if op.at else None,
        advance=opened.formula(op.advance) if op.advance else None,
        takes=_takes(op, opened) if transformer else "",
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


def link_host_port(port: PortPlan, scope: ConfigScope, parts: Mapping[str, str]) -> PortLink:
    """A result of an extern. parts: the declared types by name."""
    return _host_port(port.name, parse_type(port.type), scope, {name: parse_type(text) for name, text in parts.items()})


def _host_port(name: str, kind: Type, scope: ConfigScope, parts: Mapping[str, Type]) -> PortLink:
    optional = getattr(kind, "optional", False)
    match kind:
        case Tensor(dtype, dims):
            return PortLink(name=name, dtype=dtype, dims=[_host_length(dim, scope) for dim in dims], optional=optional)
        case Scalar(scalar):
            return PortLink(name=name, dtype=scalar, optional=optional)
        case Struct(part, fields):
            inner = [_host_port(field, of, scope, parts) for field, of in fields]
            return PortLink(name=name, dtype="part", kind=part, fields=inner, optional=optional)
        case Parts(members):
            held = [
                _host_port(member, parts[member], scope, parts)
                if member in parts
                else PortLink(name=member, dtype="part", kind=member)
                for member in members
            ]
            return PortLink(name=name, dtype="list", fields=held, optional=optional)
        case _:
            return PortLink(name=name, dtype="", optional=optional)


def _host_length(dim: Expr, scope: ConfigScope) -> int | None:
    """As `_length`; None too if it differs from request to request."""
    try:
        return _length(dim, scope)
    except FoldError:
        return None


def _length(dim: Expr, scope: ConfigScope) -> int | None:
    """A dim as a number; None if it has a free name in it. Raises FoldError."""
    if any(isinstance(part, Ref) and part.scope == "dim" for part in every_expr(dim)):
        return None
    value = fold(dim, scope)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FoldError(f"a length is {value!r}, not a whole number")
    return value


def _state(node: NodePlan, state: StatePlan, scope: ConfigScope) -> StateLink:
    kind = parse_type(state.type)
    if not isinstance(kind, Tensor):
        raise FoldError(f"not built yet: state `{node.name}.{state.name}` of type `{state.type}`, which is no tensor")
    dims = [int(fold(dim, scope)) for dim in kind.dims]
    return StateLink(name=state.name, dtype=kind.dtype, dims=dims, init=Opened(scope).formula(state.init))


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


def _takes(op: OpPlan, opened: Opened) -> str | Formula:
    """`const:n`, `rows:k` or a formula (see `OpLink`)."""
    if not op.takes:
        return ""
    match opened.formula(op.takes):
        case int(number):
            return f"const:{number}"
        case {"rows": [k, 0]}:
            return f"rows:{k}"
        case found:
            return found


def link_sampler(sampler: SamplerPlan, scope: ConfigScope) -> SamplerLink:
    """Settings as numbers, id lists or `param:<name>`."""
    settings: dict[str, Any] = {}
    for name, text in sorted(sampler.settings.items()):
        try:
            value = Opened(scope).formula(text)
        except FoldError as error:
            raise FoldError(f"not built yet: `{name} = {text}` of sampler `{sampler.name}`: {error}") from None
        if name in ID_LISTS:
            value = sorted(set(flat_ids(fold(parse_expr(text), scope))))
        match value:
            case {"param": param}:
                settings[name] = f"param:{param}"
            case _:
                settings[name] = value
    return SamplerLink(name=sampler.name, settings=settings, over=sampler.over)


def link_stream_args(stream: StreamPlan, scope: ConfigScope) -> dict[str, Any]:
    """The policy's numbers, and the name of the extern that cuts phrases."""
    return {name: fold(parse_expr(text), scope) for name, text in sorted(stream.args.items())}


def stream_capacity(stream: StreamPlan, scope: ConfigScope) -> int | str | Formula:
    """A number, a sum such as `param:max_tokens+1`, or a formula."""
    found = linear(parse_expr(stream.capacity), scope)
    if found is None:
        return Opened(scope).formula(stream.capacity)
    names, more = found
    if not names:
        return more
    return "+".join([*(f"param:{name.name}" for name in names), *([str(more)] if more else [])])
