"""Host Python of `specs/vjepa2.walk` and `specs/vjepa2_ac.walk`: clips, token positions and poses. No torch.

The binding's checkpoint is `vjepa2` (a HF folder, whose `frames_per_clip` says how many frames of a longer video are sampled) or
`vjepa2_ac` (every frame is used: each has its action).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.media import read_video
from mstarc_runtime.models.vjepa2 import config as sizes
from mstarc_runtime.models.vjepa2.clips import clip_of, sampled
from mstarc_runtime.models.vjepa2.pose import poses_along

MAX_AC_FRAMES = 64
MAX_POSITIONS = 2**16  # that a request may ask for
_NEXT_POSITION = 2**24  # positions stay below it: f32 angles tell them apart


@dataclass(frozen=True, slots=True)
class Grid:
    """Frames of `size` pixels; `tokens` per frame pair; `tubelet` frames to a token; at most `frames` of a video are used."""

    size: int
    tokens: int
    tubelet: int
    frames: int


class VideoHost:
    """Externs of both models. Methods are pure."""

    def __init__(self, grid: Grid, exact: bool) -> None:
        self.grid = grid
        self._exact = exact  # every frame counts; a longer video is refused

    @classmethod
    def load(cls, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> VideoHost:
        """What `checkpoints.Externs` calls, once per process. Raises LoadError."""
        if "vjepa2" in checkpoints:
            found, frames = sizes.read_encoder(checkpoints["vjepa2"], {}), sizes.read_frames(checkpoints["vjepa2"])
        elif "vjepa2_ac" in checkpoints:
            section = sizes.own_section(checkpoints["vjepa2_ac"], config.get("encoder", {}))
            found, frames = sizes.read_ac_encoder(checkpoints["vjepa2_ac"], section), MAX_AC_FRAMES
        else:
            raise LoadError("the binding names neither checkpoint `vjepa2` nor `vjepa2_ac`")
        return cls(Grid(found.size, found.tokens_per_frame, found.tubelet, frames), "vjepa2" not in checkpoints)

    # ------------------------------------------------------------------------------------------------------------- externs

    def clip(self, video: Any) -> NDArray[np.float32]:
        """A video -> its clip f32 [T, 3, size, size]. Raises BadRequest.

        u8 frames [T, H, W, 3], a list of images and a file are sampled, resized, cropped and normalised; f32 [T, 3, size, size]
        is such a clip already.
        """
        frames = read_video(video, "video", self._choose)
        if frames.dtype == np.uint8:
            return clip_of(frames, self.grid.size)
        size = self.grid.size
        if frames.shape[1:] != (3, size, size):
            raise BadRequest(
                f"`video` is f32 {list(frames.shape)}; a normalised clip is f32 [frames, 3, {size}, {size}]", "video"
            )
        if not np.isfinite(frames).all():
            raise BadRequest("`video` holds nan or infinity", "video")
        return np.ascontiguousarray(frames)

    def ids(self, video: NDArray[Any], context_mask: Any = None, target_mask: Any = None) -> tuple[Any, Any]:
        """Positions that the predictor sees and those that it predicts, i64 [A] and [B]: the masks, else all tokens."""
        count = self._tokens(video)
        every = np.arange(count)
        seen = every if context_mask is None else _positions(context_mask, "context_mask", count)
        wanted = every if target_mask is None else _positions(target_mask, "target_mask", _NEXT_POSITION)
        return seen, wanted

    def after(self, video: NDArray[Any], seconds: float, rate: float, output_frames: int) -> NDArray[np.int64]:
        """Positions i64 [B] of `output_frames` frames that lie `seconds` after the clip, in whole tubelets.

        Source: the anticipation wrapper of the public implementation. Raises BadRequest if they outnumber the clip's tokens, which
        the predictions push out.
        """
        count, each, tubelet = self._tokens(video), self.grid.tokens, self.grid.tubelet
        wanted = each * (max(output_frames, tubelet) // tubelet)
        if wanted > count:
            raise BadRequest(f"a step predicts {wanted} tokens, the clip has {count}", "output_frames")
        start = count + each * int(seconds * rate / tubelet)
        return np.arange(start, start + wanted)

    def poses(self, states: NDArray[np.float32], actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Poses of the arm before each action, f32 [..., A, 7]: as given, or, if there is one, from it by the actions.

        states [S, 7]; actions [A, 7], or [K, A, 7] of K candidates, whose poses all begin at the one that is given.
        """
        if states.shape[-1:] != (7,) or actions.shape[-1:] != (7,):
            field = "actions" if states.shape[-1:] == (7,) else "states"
            raise BadRequest(f"`{field}` must be rows of 7 numbers: xyz, xyz Euler angles, gripper", field)
        if not actions.size:
            raise BadRequest("`actions` holds none", "actions")
        if len(states) == 1:
            return poses_along(states[0], actions)[0]
        if states.shape != actions.shape:
            raise BadRequest(
                f"`states` has {len(states)} poses, `actions` {actions.shape[-2]}: give one, or one for each", "states"
            )
        return states

    # ------------------------------------------------------------------------------------------------------------- the parts

    def _choose(self, frames: int) -> list[int]:
        if self._exact and frames > self.grid.frames:
            raise BadRequest(f"`video` has {frames} frames; up to {self.grid.frames} are accepted", "video")
        return sampled(frames, self.grid.frames)

    def _tokens(self, video: NDArray[Any]) -> int:
        return max(len(video), self.grid.tubelet) // self.grid.tubelet * self.grid.tokens


def _positions(mask: Any, field: str, below: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.asarray(mask, np.int64).reshape(-1)
    if not 1 <= len(found) <= MAX_POSITIONS:
        raise BadRequest(f"`{field}` has {len(found)} positions; 1 to {MAX_POSITIONS} are accepted", field)
    if found.min() < 0 or found.max() >= below:
        raise BadRequest(f"`{field}` must hold positions in 0..{below - 1}", field)
    return found
