"""V-JEPA 2-AC on the reference weights (their results: tests/verify): frames apart, poses, rollouts against recomputation, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, TransformerEngine
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.vjepa2.components import Critic, FrameEncoder, Predictor
from mstarc_runtime.models.vjepa2.nets import plain_norm
from mstarc_runtime.models.vjepa2.pose import angles, poses_along, turn
from mstarc_runtime.models.vjepa2.rollout import STEP, geometry, imagine
from tests.models.vjepa2_cases import Cases, close
from tests.shipped import loader

load = loader("vjepa2_ac")

GOLDEN = Cases("vjepa2_ac")
ROLLOUTS, PLANS = GOLDEN.named("rollout"), GOLDEN.named("plan")
CHECKPOINT = Checkpoint(path=GOLDEN.folder)
N, D = 16, 88


@pytest.fixture(scope="module")
def encoder() -> FrameEncoder:
    return load(FrameEncoder, CHECKPOINT, {}, "cpu")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load(Predictor, CHECKPOINT, {}, "cpu")


@pytest.fixture(scope="module")
def critic() -> Critic:
    return Critic.share(load(Predictor, CHECKPOINT, {}), {}, "cpu")


def engine_for(predictor: Predictor, dtype: torch.dtype = torch.float32) -> TransformerEngine:
    return TransformerEngine(PagedPool.from_bytes(geometry(predictor.config), 8 << 20, dtype=dtype, poison=True))


def recomputed(critic: Critic, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
    """The rollout as the reference does it: every step runs all frames so far again and keeps the last. [B, H, n, D]."""
    frames = z[:, None]
    for step in range(1, actions.shape[1] + 1):
        raw = critic.net(frames, actions[:, :step], states[:, :step])
        frames = torch.cat([frames, plain_norm(raw[:, -1:])], dim=1)
    return frames[:, 1:]


def random_rollout(batch: int, horizon: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Frames [B, n, D], actions and poses [B, H, 7]."""
    source = torch.Generator().manual_seed(seed)
    z = plain_norm(torch.randn(batch, N, D, generator=source))
    actions, states = torch.randn(2, batch, horizon, 7, generator=source) * 0.3
    return z, actions, states


# --- encoder and poses


def test_frames_do_not_see_each_other(encoder: FrameEncoder) -> None:
    video = GOLDEN.tensor("encode_frames", "clip")[0].transpose(0, 1)
    close(encoder.frames(video)[2], encoder.frames(video[2:3])[0], 1e-5)
    assert not torch.allclose(encoder.clip(video)[1], encoder.clip(video[2:])[0], atol=1e-3)


@pytest.mark.parametrize("pitch", [0.3, math.pi / 2, -math.pi / 2])
def test_angles_give_the_matrix_back(pitch: float) -> None:
    """Also where the pitch is a right angle and roll and yaw turn about one axis."""
    matrix = turn(np.array([0.4, pitch, -1.1])).round(12)  # a right angle's cosine is 0 then
    assert np.allclose(turn(angles(matrix)), matrix, atol=1e-7)


# --- one pass over given frames


def test_critic_refuses_what_does_not_fit(critic: Critic) -> None:
    z, actions, states = random_rollout(4, 3, 0)
    with pytest.raises(BadRequest, match=r"actions must be \[4, 7\], one row per frame; got \[3, 7\]"):
        critic.teach(z, actions[0], states[0])
    with pytest.raises(BadRequest, match=r"frames are \['T', 16, 88\], got \[4, 15, 88\]"):
        critic.teach(z[:, :15], torch.zeros(4, 7), torch.zeros(4, 7))
    with pytest.raises(BadRequest, match=r"candidates are \[1..1024, T, 7\], got \[4, 7\]"):
        critic.score(z, torch.zeros(4, 7), torch.zeros(4, 7), z[0])
    with pytest.raises(BadRequest, match=r"`goal` is \[15, 88\], expected \[16, 88\]"):
        critic.score(z, torch.zeros(2, 4, 7), torch.zeros(2, 4, 7), z[0, :15])


# --- rollouts on the paged engine


@pytest.mark.parametrize("case", ROLLOUTS)
def test_cached_rollout_equals_the_reference(predictor: Predictor, critic: Critic, case: str) -> None:
    engine = engine_for(predictor)
    free = engine.pool.free_pages
    z, actions = GOLDEN.tensor(case, "context")[:, 0], GOLDEN.tensor(case, "actions")
    states, final = map(torch.from_numpy, poses_along(GOLDEN.tensor(case, "pose")[:, 0], actions))
    assert (states - GOLDEN.tensor(case, "states")).abs().max() <= 1e-5
    assert (final - GOLDEN.tensor(case, "final_pose")[:, 0]).abs().max() <= 1e-5
    tolerance = 5e-4 if actions.shape[1] >= 4 else 1e-4
    cached = imagine(engine, predictor, z, actions, states)
    close(cached[0], GOLDEN.tensor(case, "predicted"), tolerance)
    close(cached, recomputed(critic, z, actions, states), 1e-4)
    assert engine.pool.free_pages == free


def test_longest_horizon_equals_full_recomputation(predictor: Predictor, critic: Critic) -> None:
    """32 frames, twice the clip that the checkpoint states, three rollouts at once."""
    z, actions, states = random_rollout(3, 32, 1)
    cached = imagine(engine_for(predictor), predictor, z, actions, states)
    close(cached, recomputed(critic, z, actions, states), 5e-4)


def test_rollouts_at_different_frames_share_a_batch(predictor: Predictor) -> None:
    """One joins two steps after the other: both are as if alone, and each context counts entries and frames apart."""
    z, actions, states = random_rollout(2, 4, 2)
    alone = imagine(engine_for(predictor), predictor, z, actions, states)
    engine = engine_for(predictor)
    contexts = [Context(engine.pool), Context(engine.pool)]
    frames, done = [z[0], z[1]], [0, 0]
    for active in ([0], [0], [0, 1], [0, 1], [1], [1]):
        calls = [
            Call((frames[i], actions[i, done[i]], states[i, done[i]]), (contexts[i],), N + 2, advance=1) for i in active
        ]
        (column,) = engine.call(predictor.step, STEP, calls)
        for i, frame in zip(active, column, strict=True):
            close(frame, alone[i, done[i]], 1e-5)
            frames[i], done[i] = frame, done[i] + 1
            assert (contexts[i].length, contexts[i].position) == ((N + 2) * done[i], done[i])


def test_half_precision_stays_near(critic: Critic) -> None:
    """bf16 weights and cache: results are f32 and within what eight bits of mantissa allow."""
    half = load(Predictor, CHECKPOINT, {"dtype": "bfloat16"}, "cpu")
    z, actions, states = random_rollout(2, 4, 3)
    close(
        imagine(engine_for(half, torch.bfloat16), half, z, actions, states),
        recomputed(critic, z, actions, states),
        0.05,
    )
