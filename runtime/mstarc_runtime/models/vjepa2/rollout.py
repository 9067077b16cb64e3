"""Rollouts and plans of V-JEPA 2-AC over the paged engine, outside a compiled plan: for checks against reference data and for scripts."""

from __future__ import annotations

import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.vjepa2.components import Predictor
from mstarc_runtime.models.vjepa2.config import AcConfig

STEP = OpSpec("predictor.step", params=("plain", "plain", "plain"), attend="full", positions="same")


def geometry(config: AcConfig) -> Geometry:
    """The cache of the predictor."""
    stack = config.stack
    return Geometry(stack.depth, stack.heads, stack.heads, stack.head_dim)


def imagine(engine: TransformerEngine, predictor: Predictor, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
    """Frames that B rollouts imagine, each from its frame z [B, n, D] by its actions and poses [B, H, A]: [B, H, n, D].

    A step is one batched call; every rollout has its own context, which is given back at the end. Raises OutOfPages.
    """
    contexts = [Context(engine.pool) for _ in z]
    rows = predictor.config.rows
    path = []
    try:
        for step in range(actions.shape[1]):
            calls = [
                Call((frame, action, state), (context,), rows, advance=1)
                for frame, action, state, context in zip(z, actions[:, step], states[:, step], contexts, strict=True)
            ]
            (column,) = engine.call(predictor.step, STEP, calls)
            z = column if isinstance(column, Tensor) else torch.stack(column)
            path.append(z)
    finally:
        for context in contexts:
            context.drop()
    return torch.stack(path, dim=1)
