"""What lies in the memory of a rank for as long as it serves: weights, and the entries of contexts.

Takes the calls that run on the rank; gives which nodes and contexts it holds, and the bytes of weights with their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mstarc.ir.core import Invoke
from mstarc.plan.closed_forms import NodeCosts, cache_of
from mstarc.plan.sizes import gigabytes
from mstarc.plan.weights import Stored, stored_bytes
from mstarc_runtime.abi.linked import Linked


@dataclass(slots=True)
class Held:
    """nodes: those that own weights -> the share of them that is here; contexts -> bytes of one entry here."""

    nodes: dict[str, float] = field(default_factory=dict)
    contexts: dict[str, float] = field(default_factory=dict)


def held_by(rank: int, calls: Iterable[tuple[Invoke, tuple[int, ...]]], linked: Linked, number: int) -> Held:
    """What a rank holds for the calls that run on it. calls: with their ranks, of which several share weights and heads.

    number: bytes of a KV number.
    """
    held, owners = Held(), {node.name: node.weights or node.name for node in linked.nodes}
    for op, ranks in calls:
        if rank in ranks:
            owner = owners[op.node]
            held.nodes[owner] = max(held.nodes.get(owner, 0.0), 1 / len(ranks))
            for name in (*op.writes, *op.reads):
                cache = cache_of(linked, name)
                entry = 2 * cache.layers * cache.kv_heads * cache.head_dim * number
                held.contexts[name] = max(held.contexts.get(name, 0.0), entry / len(ranks))
    return held


@dataclass(frozen=True, slots=True)
class Weights:
    """bytes: of those that are known. sources: for each its number and where that comes from; unknown: other nodes, and why."""

    bytes: float
    sources: tuple[str, ...]
    unknown: Mapping[str, str]


def weights_of(
    nodes: Mapping[str, float], costs: Mapping[str, NodeCosts], linked: Linked, number: Callable[[str], int]
) -> Weights:
    """Weights of nodes. Shared weights count once, a checkpoint that is there as a whole. number: bytes of a number of a node."""
    total, unknown = 0.0, dict[str, str]()
    said, files = [], dict[str, Stored | None]()
    checkpoints = {link.name: link for link in linked.checkpoints}
    for name, share in sorted(nodes.items()):
        stored = costs[name].node.checkpoint
        if stored and stored not in files:
            files[stored] = stored_bytes(checkpoints[stored])
        if files.get(stored) is not None:
            continue
        params, source = costs[name].params()
        if params is None:
            unknown[name] = source
        else:
            count = params * number(name) * share
            total += count
            said.append(f"{name}: {gigabytes(count)}, {source}")
    for found in files.values():
        if found is not None:
            total += found.bytes
            said.append(f"{gigabytes(found.bytes)}, {found.source}")
    return Weights(total, tuple(said), unknown)
