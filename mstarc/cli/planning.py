"""`mstarc plan`: what a package is under a placement. Takes a linked package; prints ranks, launches, streams, moves, KV caches and
what requests cost.

As JSON it is the linked program with the rows of those tables beside it. What the runtime cannot run yet is a finding, and the exit
status says so, but the picture is drawn all the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mstarc.cli.costs import CostCall, cost_data, cost_lines, cost_tables, estimates
from mstarc.cli.findings import colours, write_findings
from mstarc.cli.guard import FINDINGS, OK
from mstarc.cli.packages import Package, link_package, spec_of, undamaged
from mstarc.cli.values import pairs
from mstarc.diagnostics.core import Collector
from mstarc_runtime.abi.chunks import capacity_sum, policy_of

if TYPE_CHECKING:
    from mstarc.plan.cost import Estimate
    from mstarc.plan.model import Plan
    from mstarc.plan.move_rows import MoveRow
    from mstarc.plan.region_rows import RegionRow
    from mstarc_runtime.abi.linked import Linked, StreamLink

_NARROW = (
    "stream",
    "transport",
    "capacity",
    "rank",
    "device",
    "threads",
    "walk",
    "cache",
    "an entry",
    "context",
    "loop",
    "per",
    "how",
)
Table: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def run_plan(folder: str, placement: str | None, checkpoints: Sequence[str], format: str, costs: CostCall) -> int:
    """Print the plan of a package."""
    from mstarc.plan.lopsided import report_lopsided

    package = link_package(folder, placement, pairs(checkpoints, "--checkpoint"), looking=True)
    with undamaged(package.folder):
        found = estimates(package, costs)
        report = Collector()
        report_lopsided(found, package.placement, report)
        write_findings(report.findings())
        if format == "json":
            _write_json(package, found)
        else:
            _print(package, found)
    return FINDINGS if package.limited else OK


def _write_json(package: Package, found: Sequence[Estimate]) -> None:
    import msgspec

    regions, moves = _facts(package)
    data = msgspec.to_builtins(package.linked)
    data |= {"regions": msgspec.to_builtins(regions), "moves": msgspec.to_builtins(moves)}
    data["costs"] = [cost_data(estimate) for estimate in found]
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _facts(package: Package) -> tuple[list[RegionRow], list[MoveRow]]:
    """Launches, and what crosses between ranks."""
    from mstarc.plan.move_rows import move_rows
    from mstarc.plan.region_rows import region_rows

    plan, linked = package.plan, package.linked
    moves = move_rows(plan, package.placement, linked, package.overrides)
    return region_rows(plan, linked, package.overrides), moves


def _print(package: Package, found: Sequence[Estimate]) -> None:
    linked = package.linked
    placed = f" under {linked.placement}" if linked.placement else ", everything on one rank"
    print(f"{linked.model}{placed}; digest {linked.digest[:12]}")
    for table in tables(package):
        _draw(table)
    for estimate in found:
        print(f"\ncosts of {estimate.shape}")
        for table in cost_tables(estimate) if len(found) == 1 else ():
            if table[2]:
                _draw(table)
        print("\n" * (len(found) == 1) + "\n".join(cost_lines(estimate)))
    if len(found) > 1:
        print("\n`--request NAME` shows the calls of one")
    if not found:
        print(f"\nno costs: {spec_of(package.folder, package.plan)} is not the spec that the package was made from")


def tables(package: Package) -> Iterator[Table]:
    """(title, heads, rows) of each table that has rows."""
    linked, plan = package.linked, package.plan
    regions, moves = _facts(package)
    lows = {param.name: param.low for param in plan.params}
    every: list[Table] = [
        ("ranks", ("rank", "device", "threads", "nodes", "walks"), list(_ranks(linked))),
        ("walks", ("walk", "rank", "nodes", "contexts", "loops"), list(_walks(linked, plan))),
        (
            "regions",
            ("loop", "rank", "runs as", "one launch may hold", "runs ahead", "note"),
            [(r.loop, str(r.rank), r.runs or "-", r.launch, r.ahead or "-", r.note or "-") for r in regions],
        ),
        (
            "streams",
            ("stream", "policy", "route", "transport", "capacity", "progress"),
            [_stream(s, linked, lows) for s in linked.streams],
        ),
        (
            "moves between ranks",
            ("in", "per", "what", "how", "route", "bytes to each", "when"),
            [_move(move) for move in moves],
        ),
        (
            "KV caches",
            ("cache", "geometry", "an entry", "context", "most entries", "full context"),
            list(_caches(linked)),
        ),
    ]
    return (table for table in every if table[2])


def _ranks(linked: Linked) -> Iterator[tuple[str, ...]]:
    for rank in linked.ranks:
        walks = [walk.name for walk in linked.walks if rank.rank in (walk.ranks or [walk.rank])]
        threads = "auto" if rank.threads == 0 else str(rank.threads)
        yield str(rank.rank), rank.device, threads, rank.label or "-", ", ".join(walks) or "-"


def _walks(linked: Linked, plan: Plan) -> Iterator[tuple[str, ...]]:
    """A loop is either a region, run for many requests at once, or part of its walk's coroutine."""
    loops = {walk.name: walk.loops for walk in plan.walks}
    for walk in linked.walks:
        shown = [f"{loop.label} ({'region' if loop.region else 'coroutine'})" for loop in loops.get(walk.name, [])]
        cells = (", ".join(names) or "-" for names in (walk.nodes, walk.contexts, shown))
        yield (walk.name, ", ".join(map(str, walk.ranks or [walk.rank])), *cells)


def _move(move: MoveRow) -> tuple[str, ...]:
    route = f"{move.source} to {', '.join(map(str, move.sinks))}"
    return move.where, move.per, move.what, move.verb, route, move.bytes, move.when or "-"


def _stream(stream: StreamLink, linked: Linked, lows: Mapping[str, str]) -> tuple[str, ...]:
    source = _side(stream.source, [w.name for w in linked.walks if stream.name in w.sends])
    sink = _side(stream.sink, [w.name for w in linked.walks if stream.name in w.takes])
    capacity = str(stream.capacity).replace("param:", "")
    policy = f"{stream.policy}({', '.join(f'{name}={value}' for name, value in stream.args.items())})"
    if stream.at_end:
        policy += f" at_end {stream.at_end}"
    return stream.name, policy, f"{source} to {sink}", stream.transport, capacity, progress(stream, lows)


def _side(rank: int, walks: Sequence[str]) -> str:
    return f"{', '.join(walks) or '-'} on {rank}"


def progress(stream: StreamLink, lows: Mapping[str, str] | None = None) -> str:
    """Why a producer that sends one item at a time never blocks for good: `128 >= 64 = 1 + 64 - 1`, or that it can.

    lows: the least value of each param, for a capacity that grows with some.
    """
    needed = capacity_sum(policy_of(stream.policy, stream.args))
    least = int(needed.partition(" ")[0])
    if isinstance(stream.capacity, int):
        return f"{stream.capacity} {'>=' if stream.capacity >= least else '<'} {needed}"
    terms = [term.removeprefix("param:") for term in stream.capacity.split("+")]
    given = [term if term.isdigit() else (lows or {}).get(term, "") for term in terms]
    if not all(value.isdigit() for value in given):
        return f"{'+'.join(terms)} >= {needed}"
    low = sum(map(int, given))
    return f"{'+'.join(terms)} >= {low} {'>=' if low >= least else '<'} {needed}"


def _caches(linked: Linked) -> Iterator[tuple[str, ...]]:
    from mstarc.plan.sizes import bytes_text, kv_bytes

    for cache in linked.caches:
        geometry = f"{cache.layers} layers, {cache.kv_heads} of {cache.heads} heads, dim {cache.head_dim}"
        for context in linked.contexts:
            if context.cache == cache.name:
                rank = next((walk.rank for walk in linked.walks if context.name in walk.contexts), 0)
                entry = kv_bytes(cache, linked.ranks[rank].device)
                full = bytes_text(entry * context.max) if context.max else "unbounded"
                yield cache.name, geometry, bytes_text(entry), context.name, str(context.max or "-"), full


def _draw(table: Table) -> None:
    """On a terminal with rich; else in plain columns that a script can cut."""
    title, heads, rows = table
    if colours(sys.stdout):
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable

        drawn = RichTable(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for head in heads:
            drawn.add_column(head, overflow="fold", no_wrap=head in _NARROW)
        for row in rows:
            drawn.add_row(*_escaped(row))
        Console().print(drawn)
        return
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    print(f"\n{title}")
    for row in (heads, *rows):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _escaped(row: tuple[str, ...]) -> list[Any]:
    from rich.text import Text

    return [Text(cell) for cell in row]
