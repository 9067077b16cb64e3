"""The costs of a package's requests, for `mstarc plan`. Takes a linked package and what a request is like; gives tables and data.

Costs are counted on the program, so the spec that the package was made from has to lie where the plan says, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mstarc.cli.guard import USAGE, Failure
from mstarc.cli.packages import Package, spec_of
from mstarc.cli.values import pairs, plain_value

if TYPE_CHECKING:
    from mstarc.binding_file import Binding
    from mstarc.ir.core import Program
    from mstarc.passes.shape import Shape
    from mstarc.plan.cost import CallCost, Estimate, Memory
    from mstarc.plan.course_values import Collected

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class CostCall:
    """Which request: its name ("" = each of them), what it brings and wants (modalities, in order), `name=value` of params and sizes."""

    request: str = ""
    given: Sequence[str] = ()
    wants: Sequence[str] = ()
    values: Sequence[str] = ()

    @property
    def asked(self) -> bool:
        """Whether anything was said, so that not being able to answer is a failure."""
        return bool(self.request or self.given or self.wants or self.values)


def estimates(package: Package, call: CostCall) -> tuple[Estimate, ...]:
    """One estimate for each request that the call means. Raises Failure (usage) for a request that is refused."""
    from mstarc.interp.errors import RequestRefused
    from mstarc.plan.cost import estimate
    from mstarc.plan.formulas import FormulaError

    found = _program(package)
    if found is None:
        if call.asked:
            spec = spec_of(package.folder, package.plan)
            raise Failure(
                f"`{spec}` is not the spec that the package was made from",
                help=f"mstarc compile {spec} -o {package.folder}",
            )
        return ()
    program, binding = found
    names = [call.request] if call.request else [request.name for request in program.requests]
    sections = {**binding.config, **{node.name: node.config for node in package.linked.nodes}}
    try:
        shapes = [(_shape(program, binding, name, call)) for name in names]
        return tuple(
            estimate(program, package.linked, package.placement, shape, binding.cost, sections, sizes)
            for shape, sizes in shapes
        )
    except (RequestRefused, FormulaError) as error:
        raise Failure(str(error), USAGE) from None


def _program(package: Package) -> tuple[Program, Binding] | None:
    """The program that code is generated from, with the linked config, and its binding; None if the spec is gone or has changed."""
    from mstarc import frontend
    from mstarc.binding import literal_of, read_binding
    from mstarc.diagnostics.core import Collector
    from mstarc.passes.pipeline import rewritten
    from mstarc.plan.model import sha256_of
    from mstarc.source import SourceFile

    spec, beside = (package.folder / path for path in (package.plan.spec.path, package.plan.spec.binding))
    if not spec.is_file():
        return None
    program, _, source = frontend.load(spec)
    text = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    if program is None or sha256_of(source.text, text) != package.plan.spec.digest:
        return None
    bound = read_binding(SourceFile(str(beside), text), Collector())
    if bound is None:
        return None
    values = package.linked.config
    configs = tuple(replace(c, path="", expr=literal_of(values[c.name])) for c in program.configs)
    return rewritten(replace(program, configs=configs)), bound.binding


def _shape(program: Program, binding: Binding, name: str, call: CostCall) -> tuple[Shape, dict[str, int]]:
    """The shape of a request, and the sizes that were set."""
    from mstarc.passes.shape import kinds_of, request_of, shape_of

    params, sizes = {}, {}
    declared = {param.name for param in program.params}
    for key, text in pairs(call.values, "--set").items():
        value = plain_value(text)
        if key in declared:
            params[key] = value
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Failure(f"`--set {key}={text}`: `{key}` is no param, so it is a size, a whole number", USAGE)
        else:
            sizes[key] = value
    shape = shape_of(program, name, call.given or None, call.wants or None, params)
    brought = {kind: [by] if isinstance(by, str) else by for kind, by in binding.cost.parts.items()}
    kinds = kinds_of(request_of(program, name))
    order = list(call.given) or sorted(shape.given)
    parts = tuple(kind for modality in order for kind in kinds if modality in brought.get(kind, ()))
    return replace(shape, parts=parts), sizes


# -------------------------------------------------------------------------------------------------------------------- tables


def cost_tables(found: Estimate) -> Iterator[Table]:
    """Tables of one estimate."""
    yield "branches", ("walk.loop", "iterations", "branches", "branch-steps", "not run"), list(_branches(found))
    columns: tuple[str, ...] = (
        "walk.loop",
        "op",
        "rank",
        "calls",
        "rows",
        "FLOP",
        "bytes",
        "time",
        "bound by",
        "FLOP from",
    )
    yield "calls", columns, [_call(call) for call in found.calls]
    columns = ("rank", "chip", "weights", "KV, all at max", "KV, here", "activations", "in all", "of", "weights from")
    yield "memory", columns, [_memory(memory, found) for memory in found.memory]
    yield (
        "collected",
        ("walk.loop", "name", "at most", "values x numbers x bytes", "in all"),
        [_collected(c) for c in found.collected],
    )


def cost_lines(found: Estimate) -> Iterator[str]:
    """What stands below the tables: sums, and what was taken for granted."""
    flops = _sum(found.flops, [call.flops for call in found.calls], "FLOP", "FLOP")
    moved = _sum(found.bytes, [call.bytes for call in found.calls], "B", "bytes")
    path = (
        f"critical path {_untimed(found)}"
        if found.seconds is None
        else f"critical path {_time(found.seconds)} at least"
    )
    yield f"one request: {flops}, {moved}, {path}"
    if len(found.busy) > 1:
        yield "busy: " + ", ".join(f"rank {rank} {_busy(found, rank)}" for rank in found.busy)
    if found.unknown:
        yield f"not counted, for want of a `cost` in the binding: {', '.join(found.unknown)}"
    for name, said in sorted(found.assumed.items()):
        yield f"  {name} = {said}"


def _sum(total: float, parts: Sequence[float | None], unit: str, what: str) -> str:
    """A sum of parts of which some may not be known."""
    known = [part for part in parts if part is not None]
    if parts and not known:
        return f"{what} unknown"
    return ("at least " if len(known) < len(parts) else "") + _si(total, unit)


def _untimed(found: Estimate) -> str:
    """Why there is no critical path: it needs the ceilings of every chip, and the costs of every call."""
    bare = sorted({rank for call in found.calls for rank in call.ranks if rank not in found.chips})
    chips = f"the placement says no `chip` of rank {' and '.join(map(str, bare))}" if bare else ""
    costs = f"{len(found.unknown)} op{'s have' if len(found.unknown) > 1 else ' has'} no cost" if found.unknown else ""
    return f"unknown: {' and '.join(why for why in (chips, costs) if why)}"


def _busy(found: Estimate, rank: int) -> str:
    """Seconds of a rank."""
    parts = [call.seconds for call in found.calls if rank in call.ranks]
    if parts and all(part is None for part in parts):
        return "unknown"
    return ("at least " if None in parts else "") + _time(found.busy[rank])


def _branches(found: Estimate) -> Iterator[tuple[str, ...]]:
    for b in found.branches:
        reused = f"{', '.join(b.reused)}: an equal context" if b.reused else "-"
        shown = f"{len(b.branches)} ({', '.join(b.branches)})"
        yield f"{b.walk}.{b.loop}", f"{b.iterations:g}", shown, f"{b.steps:g}", reused
    loops = dict.fromkeys((b.walk, b.loop) for b in found.branches)
    for walk, loop in loops:
        mine = [b for b in found.branches if (b.walk, b.loop) == (walk, loop)]
        if len(mine) > 1:
            total = (sum(b.iterations for b in mine), sum(b.steps for b in mine))
            yield f"{walk}.{loop}", f"{total[0]:g}", "in all", f"{total[1]:g}", "-"


def _call(call: CallCost) -> tuple[str, ...]:
    where = f"{call.walk}.{call.loop}" if call.loop else call.walk
    time = "-" if call.seconds is None else _time(call.seconds)
    counts = (f"{call.calls:g}", f"{call.rows:g}" if call.rows else "-")
    return (
        where,
        call.op,
        " + ".join(map(str, call.ranks)),
        *counts,
        _si(call.flops),
        _si(call.bytes, "B"),
        time,
        call.bound or "-",
        call.source,
    )


def _memory(memory: Memory, found: Estimate) -> tuple[str, ...]:
    parts = (memory.weights, memory.contexts, memory.request, memory.activations)
    total = None if memory.weights is None else memory.weights + memory.contexts + memory.activations
    limit = "-" if memory.limit is None else _si(memory.limit, "B")
    chip = found.chips.get(memory.rank, "-")
    shown = (_si(part, "B") for part in (*parts, total))
    return str(memory.rank), chip, *shown, limit, "; ".join(memory.sources)


def _collected(c: Collected) -> tuple[str, ...]:
    """`30 x 256 x 1408 x 4 B`: what one request holds until the loop's result is used."""
    product = " x ".join(map(str, (c.count, *c.dims, c.number)))
    return f"{c.walk}.{c.loop}", c.name, c.bound, f"{product} B", _si(c.bytes, "B")


def _si(value: float | None, unit: str = "") -> str:
    """`5.43 P`: three digits and a decimal prefix."""
    if value is None:
        return "?"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def _time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def cost_data(found: Estimate) -> dict[str, Any]:
    """One estimate for JSON."""
    from dataclasses import asdict

    data = asdict(found)
    del data["parallels"]  # what of them matters is a finding
    for row, collected in zip(data["collected"], found.collected, strict=True):
        row["bytes"] = collected.bytes
    for row, branch in zip(data["branches"], found.branches, strict=True):
        row["steps"] = branch.steps
    return data
