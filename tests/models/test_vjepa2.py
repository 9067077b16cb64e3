"""V-JEPA 2 on the reference weights (their results: tests/verify): frames left out, tables, refusals, rotary positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.vjepa2.components import Encoder, MaskedPredictor
from mstarc_runtime.models.vjepa2.rope import rotate, rotation
from tests.models.vjepa2_cases import Cases, close
from tests.shipped import loader

load = loader("vjepa2")

GOLDEN = Cases("vjepa2")
TOKENS = 64


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(Encoder, Checkpoint(path=GOLDEN.folder), {}, "cpu")


@pytest.fixture(scope="module")
def predictor() -> MaskedPredictor:
    return load(MaskedPredictor, Checkpoint(path=GOLDEN.folder / "model.safetensors"), {}, "cpu")


def masks(case: str, batch: int) -> tuple[Tensor, Tensor]:
    """Context and target positions; all tokens where the case gives none."""
    if not GOLDEN.has(case, "context_mask"):
        every = torch.arange(TOKENS).expand(batch, -1)
        return every, every
    return GOLDEN.tensor(case, "context_mask"), GOLDEN.tensor(case, "target_mask")


# --- encoder


def test_frames_that_fill_no_tubelet_are_left_out(encoder: Encoder) -> None:
    video = GOLDEN.tensor("encode", "pixel_values_videos")
    assert torch.equal(encoder.encode(video[:, :5]), encoder.encode(video[:, :4]))


def test_position_tables_stay_few(encoder: Encoder) -> None:
    """Clip lengths come from requests: the tables that are kept for them are bounded, and still right after they were dropped."""
    video = GOLDEN.tensor("encode", "pixel_values_videos")
    for frames in range(2, 42, 2):
        encoder.encode(video[0].repeat(6, 1, 1, 1)[:frames])
    assert len(encoder.net._tables) <= 16
    close(encoder.encode(video), GOLDEN.tensor("encode", "last_hidden_state"))


@pytest.mark.parametrize("shape", [(2, 3, 64, 48), (2, 1, 64, 64), (0, 3, 64, 64), (3, 64, 64)])
def test_encoder_refuses_other_videos(encoder: Encoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"a video is \[T, 3, 64, 64\], got") as caught:
        encoder.encode(torch.zeros(shape))
    assert caught.value.field == "video"


# --- masked predictor


@pytest.mark.parametrize(
    ("context", "targets", "message"),
    [
        ([0, 64], [3], r"0\.\.63"),
        ([-1], [3], r"0\.\.63"),
        ([0], [-1], "targets"),
        ([0], [], "targets"),
    ],
)
def test_predictor_refuses_other_positions(
    predictor: MaskedPredictor, context: list[int], targets: list[int], message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        predictor.predict(torch.zeros(TOKENS, 64), torch.tensor(context), torch.tensor(targets, dtype=torch.int64))


# --- masked rollout


def test_rollout_refuses_more_than_its_window(predictor: MaskedPredictor) -> None:
    with pytest.raises(BadRequest, match="predicts 32 tokens, its window has 16"):
        predictor.roll(torch.zeros(16, 64), torch.arange(32))


# --- rotary positions


@pytest.mark.parametrize("head_dim", [6, 16, 22, 64])
def test_rotation_pairs_neighbours_and_tiles_frequencies(head_dim: int) -> None:
    """Spelled out per dim: pair (2i, 2i+1) of an axis, each member with the angle of its own place in the tiling."""
    third = 2 * (head_dim // 3 // 2)
    positions = (7, 2, 5)
    frame, row, column = (torch.tensor([position]) for position in positions)
    x = torch.randn(head_dim, generator=torch.Generator().manual_seed(head_dim))
    turned = rotate(x.view(1, 1, 1, -1), rotation(frame, row, column, head_dim)).flatten()
    wanted = x.clone()
    for axis, position in enumerate(positions):
        for i in range(third):
            angle = torch.tensor(position * 10000.0 ** -(i % (third // 2) / (third / 2)))
            here = axis * third + i
            partner = -x[here + 1] if i % 2 == 0 else x[here - 1]
            wanted[here] = x[here] * angle.cos() + partner * angle.sin()
    assert torch.allclose(turned, wanted, atol=1e-6)
    assert torch.equal(turned[3 * third :], x[3 * third :])
