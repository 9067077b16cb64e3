"""Host side of V-JEPA 2: clips as the public evaluation transform makes them, positions, poses, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.vjepa2.clips import clip_of, sampled
from mstarc_runtime.models.vjepa2.host import VideoHost
from tests.models.vjepa2_cases import GOLDENS

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def host() -> VideoHost:
    """64 pixels, 16 tokens a frame pair, clips of 8 frames."""
    return VideoHost.load({"vjepa2": Checkpoint(path=GOLDENS / "vjepa2")}, {})


@pytest.fixture(scope="module")
def arm() -> VideoHost:
    return VideoHost.load({"vjepa2_ac": Checkpoint(path=GOLDENS / "vjepa2_ac")}, {})


def test_no_torch() -> None:
    lines = "import sys, mstarc_runtime.models.vjepa2.host; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", lines], check=True, timeout=60)


# --- clips


@pytest.mark.parametrize("size", [(480, 640), (90, 120), (120, 90), (64, 64), (40, 41), (1, 300)])
def test_a_clip_is_resized_cropped_and_normalised(size: tuple[int, int]) -> None:
    """Against torch's bilinear resize without antialias: within the one step of 255 by which fixed point may round otherwise."""
    frames = np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)
    got = clip_of(frames, 64)
    short = int(64 * 256 / 224)
    rows, columns = (
        (short, int(short * size[1] / size[0])) if size[0] <= size[1] else (int(short * size[0] / size[1]), short)
    )
    scaled = torch.nn.functional.interpolate(
        torch.from_numpy(frames).permute(0, 3, 1, 2).double(), (rows, columns), mode="bilinear", align_corners=False
    )
    top, left = round((rows - 64) / 2), round((columns - 64) / 2)
    wanted = scaled[..., top : top + 64, left : left + 64].numpy()
    steps = got * DEVIATION[:, None, None] * 255 + MEAN[:, None, None] * 255
    assert got.shape == (2, 3, 64, 64) and got.dtype == np.float32
    assert np.abs(steps - steps.round()).max() < 1e-2 and np.abs(steps - wanted).max() < 1.01


def test_an_even_picture_stays_even() -> None:
    got = clip_of(np.full((1, 50, 70, 3), 200, np.uint8), 64)
    assert np.allclose(got, ((200 / 255 - MEAN) / DEVIATION)[:, None, None], atol=1e-5)


def test_sampling() -> None:
    assert sampled(3, 8) == [0, 1, 2] and sampled(8, 8) == list(range(8))
    assert sampled(16, 8) == list(range(0, 16, 2)) and sampled(20, 8) == [0, 2, 5, 7, 10, 12, 15, 17]


def test_a_long_video_is_sampled_and_an_arm_needs_every_frame(host: VideoHost, arm: VideoHost) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), np.uint8)
    assert np.array_equal(host.clip(frames), host.clip(frames[sampled(20, 8)]))
    assert len(arm.clip(frames)) == 20


def test_a_normalised_clip_passes(host: VideoHost) -> None:
    clip = np.random.default_rng(0).normal(size=(3, 3, 64, 64)).astype(np.float32)
    assert np.array_equal(host.clip(clip), clip)
    for wrong, message in ((clip[..., :63], "a normalised clip is f32"), (clip * np.float32("nan"), "nan or infinity")):
        with pytest.raises(BadRequest, match=message):
            host.clip(wrong)


# --- positions


def test_positions(host: VideoHost) -> None:
    clip = np.zeros((4, 3, 64, 64), np.float32)
    seen, wanted = host.ids(clip)
    assert seen.tolist() == wanted.tolist() == list(range(32))
    seen, wanted = host.ids(clip, [3, 1], [40])
    assert (seen.tolist(), wanted.tolist(), seen.dtype) == ([3, 1], [40], np.int64)
    assert host.ids(clip[:1])[0].tolist() == list(range(16))
    assert host.after(clip, 1.0, 4.0, 2).tolist() == list(range(64, 80))
    assert host.after(clip, 0.0, 4.0, 4).tolist() == list(range(32, 64))


@pytest.mark.parametrize(
    ("masks", "field"),
    [(([32], None), "context_mask"), (([], None), "context_mask"), ((None, [-1]), "target_mask"), ((None, [2**24]), "target_mask")],
)  # fmt: skip
def test_wrong_positions_are_refused(host: VideoHost, masks: tuple[Any, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        host.ids(np.zeros((4, 3, 64, 64), np.float32), *masks)
    assert caught.value.field == field


# --- poses


def test_poses_follow_from_the_first_one(arm: VideoHost) -> None:
    actions = np.random.default_rng(0).normal(0, 0.3, (3, 4, 7)).astype(np.float32)
    start = np.zeros((1, 7), np.float32)
    together = arm.poses(start, actions)
    assert together.shape == (3, 4, 7) and not together[:, 0].any()
    for each, mine in zip(actions, together, strict=True):
        assert np.array_equal(arm.poses(start, each), mine)
    assert np.array_equal(arm.poses(together[0], actions[0]), together[0])


@pytest.mark.parametrize(
    ("states", "actions", "field"),
    [((1, 6), (2, 7), "states"), ((1, 7), (2, 6), "actions"), ((2, 7), (3, 7), "states"), ((1, 7), (0, 7), "actions"),
     ((2, 7), (3, 2, 7), "states")],
)  # fmt: skip
def test_wrong_poses_are_refused(arm: VideoHost, states: tuple[int, ...], actions: tuple[int, ...], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        arm.poses(np.zeros(states, np.float32), np.zeros(actions, np.float32))
    assert caught.value.field == field


def test_a_host_needs_its_checkpoint() -> None:
    with pytest.raises(LoadError, match="neither checkpoint `vjepa2` nor `vjepa2_ac`"):
        VideoHost.load({}, {})
