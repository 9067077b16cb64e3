"""A look and the flow of pi0.5 over the paged engine, outside a compiled plan: for checks against reference data and for scripts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.pi05.config import PolicyConfig
from mstarc_runtime.models.pi05.policy import Policy

READ = OpSpec("llm.read", params=("packed",), results=(), attend="full", positions="seq")
VELOCITY = OpSpec("llm.velocity", params=("plain", "scalar"), attend="full", positions="seq", frozen=True)


def geometry(config: PolicyConfig) -> Geometry:
    """The cache that language model and expert share."""
    return Geometry(config.layers, config.heads, config.kv_heads, config.head_dim)


def look(engine: TransformerEngine, policy: Policy, prefixes: Sequence[tuple[Tensor, Tensor]]) -> list[Context]:
    """Read B prefixes, each camera rows [M, d] and prompt ids [T], in one call: one new context each. Raises OutOfPages."""
    contexts = [Context(engine.pool) for _ in prefixes]
    rows = [policy.prefix(seen, ids) for seen, ids in prefixes]
    calls = [Call((each,), (context,), len(each)) for each, context in zip(rows, contexts, strict=True)]
    engine.call(policy.read, READ, calls)
    return contexts


def velocities(
    engine: TransformerEngine, policy: Policy, contexts: Sequence[Context], x: Tensor, times: Sequence[float]
) -> Tensor:
    """v [B, horizon, action_dim] of noisy actions x of the same shape at the times of the requests, over their prefixes."""
    calls = [
        Call((each, torch.tensor(t)), (context,), policy.config.horizon)
        for each, t, context in zip(x, times, contexts, strict=True)
    ]
    (column,) = engine.call(policy.velocity, VELOCITY, calls)
    return column if isinstance(column, Tensor) else torch.stack(column)


def flow(
    engine: TransformerEngine, policy: Policy, contexts: Sequence[Context], noise: Tensor, steps: int
) -> tuple[Tensor, list[Tensor]]:
    """From noise [B, horizon, action_dim] to actions in `steps` steps: the actions, and v of every step."""
    x, path = noise, []
    for step in range(steps):
        path.append(velocities(engine, policy, contexts, x, [1 - step / steps] * len(noise)))
        x = x - path[-1] / steps
    return x, path
