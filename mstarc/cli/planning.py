"""`mstarc plan`: what a package is under a placement. Takes a linked package; prints ranks, streams, KV caches and
what requests cost, or the same as JSON.

KV bytes of one entry are 2 * layers * kv_heads * head_dim numbers, keys and values of every layer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mstarc.cli.costs import CostCall, cost_data, cost_lines, cost_tables, estimates
from mstarc.cli.findings import colours
from mstarc.cli.guard import OK
from mstarc.cli.packages import Package, link_package
from mstarc.cli.values import pairs
from mstarc_runtime.abi.chunks import capacity_sum, policy_of

if TYPE_CHECKING:
    from mstarc.plan.cost import Estimate
    from mstarc.plan.model import Plan
    from mstarc_runtime.abi.linked import CacheLink, Linked, StreamLink

_NARROW = ("stream", "transport", "capacity", "rank", "device", "threads", "walk", "cache", "an entry", "context")
NUMBER = 4  # bytes of an f32
Table: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def run_plan(folder: str, placement: str | None, checkpoints: Sequence[str], format: str, costs: CostCall) -> int:
    """Print the plan of a package."""
    package = link_package(folder, placement, pairs(checkpoints, "--checkpoint"))
    if format == "json":
        import msgspec

        data = msgspec.to_builtins(package.linked)
        data["costs"] = [cost_data(found) for found in estimates(package, costs)]
        sys.stdout.write(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        return OK
    found = estimates(package, costs)
    _print(package, found)
    return OK


def _print(package: Package, found: Sequence[Estimate]) -> None:
    linked = package.linked
    placed = f" under {linked.placement}" if linked.placement else ", everything on one rank"
    print(f"{linked.model}{placed}; digest {linked.digest[:12]}")
    for table in tables(linked, package.plan):
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
        print(f"\nno costs: {package.plan.spec.path} is not the spec that the package was made from")


def tables(linked: Linked, plan: Plan) -> Iterator[Table]:
    """(title, heads, rows) of each table that has rows."""
    every: list[Table] = [
        ("ranks", ("rank", "device", "threads", "nodes", "walks"), list(_ranks(linked))),
        ("walks", ("walk", "rank", "nodes", "contexts", "loops"), list(_walks(linked, plan))),
        (
            "streams",
            ("stream", "policy", "route", "transport", "capacity", "progress"),
            [_stream(s, linked) for s in linked.streams],
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
        walks = [walk for walk in linked.walks if walk.rank == rank.rank]
        used = {name for walk in walks for name in walk.nodes}
        nodes = [node.name for node in linked.nodes if node.name in used]
        threads = "auto" if rank.threads == 0 else str(rank.threads)
        yield str(rank.rank), rank.device, threads, ", ".join(nodes) or "-", ", ".join(w.name for w in walks) or "-"


def _walks(linked: Linked, plan: Plan) -> Iterator[tuple[str, ...]]:
    """A loop is either a region, run for many requests at once, or part of its walk's coroutine."""
    loops = {walk.name: walk.loops for walk in plan.walks}
    for walk in linked.walks:
        shown = [f"{loop.label} ({'region' if loop.region else 'coroutine'})" for loop in loops.get(walk.name, [])]
        cells = (", ".join(names) or "-" for names in (walk.nodes, walk.contexts, shown))
        yield (walk.name, str(walk.rank), *cells)


def _stream(stream: StreamLink, linked: Linked) -> tuple[str, ...]:
    source = _side(stream.source, [w.name for w in linked.walks if stream.name in w.sends])
    sink = _side(stream.sink, [w.name for w in linked.walks if stream.name in w.takes])
    capacity = str(stream.capacity).replace("param:", "")
    policy = f"{stream.policy}({', '.join(f'{name}={value}' for name, value in stream.args.items())})"
    if stream.at_end:
        policy += f" at_end {stream.at_end}"
    return stream.name, policy, f"{source} to {sink}", stream.transport, capacity, progress(stream)


def _side(rank: int, walks: Sequence[str]) -> str:
    return f"{', '.join(walks) or '-'} on {rank}"


def progress(stream: StreamLink) -> str:
    """Why a producer that sends one item at a time never blocks for good: `128 >= 64 = 1 + 64 - 1`, or that it can."""
    needed = capacity_sum(policy_of(stream.policy, stream.args))
    if not isinstance(stream.capacity, int):
        return f"{stream.capacity.replace('param:', '')} >= {needed}"
    least = int(needed.partition(" ")[0])
    return f"{stream.capacity} {'>=' if stream.capacity >= least else '<'} {needed}"


def _caches(linked: Linked) -> Iterator[tuple[str, ...]]:
    for cache in linked.caches:
        geometry = f"{cache.layers} layers, {cache.kv_heads} of {cache.heads} heads, dim {cache.head_dim}"
        entry = kv_bytes(cache)
        for context in linked.contexts:
            if context.cache == cache.name:
                full = _bytes(entry * context.max) if context.max else "unbounded"
                yield cache.name, geometry, _bytes(entry), context.name, str(context.max or "-"), full


def kv_bytes(cache: CacheLink) -> int:
    """Bytes of one entry. The runtime's pools hold f32 numbers."""
    return 2 * cache.layers * cache.kv_heads * cache.head_dim * NUMBER


def _bytes(count: int) -> str:
    """`23040 B`, `45.0 KiB`, `90.0 MiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


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
