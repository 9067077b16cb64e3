"""The component `Vision`: `encode(images: f32[C, 3, size, size]) -> rows: f32[tokens · C, d]`, stateless.

Camera images are in [-1, 1], in the order of the cameras; an absent camera is left out. With `batch stack` there is one more dim 0.
The node's config may hold `dtype` (float32 by default, bfloat16, float16: patches and positions stay f32); rows have it too. Without a
checkpoint the weights are random (`seed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.pi05 import config as sizes
from mstarc_runtime.models.pi05.config import VisionConfig
from mstarc_runtime.models.pi05.nets import VisionNet
from mstarc_runtime.models.pi05.weights import vision_net, vision_prepared
from mstarc_runtime.weights import Fit

USUAL_CAMERAS = 3  # of the robots that the model was trained for


class Vision:
    """The SigLIP tower and the connector to the language model."""

    def __init__(self, net: VisionNet, config: VisionConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        return sizes.vision_values(checkpoint, config)

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return vision_prepared(sizes.read_vision(checkpoint, config), checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Vision:
        """Raises LoadError naming the key, tensor or file that is wrong."""
        facts = sizes.read_vision(checkpoint, config)
        dtype, seed = str(config.get("dtype", "float32")), int(config.get("seed", 0))
        return cls(vision_net(facts, checkpoint, dtype, device, seed), facts)

    def usual_shapes(self, op: str) -> list[tuple[tuple[int, ...], ...]]:
        """One to three cameras."""
        size = self.config.image_size
        return [((cameras, 3, size, size),) for cameras in range(1, USUAL_CAMERAS + 1)]

    def encode(self, images: Tensor) -> Tensor:
        """Rows camera by camera. They are not scaled; see `Policy`. Raises BadRequest on another shape."""
        size = self.config.image_size
        if images.dim() not in (4, 5) or tuple(images.shape[-3:]) != (3, size, size):
            raise BadRequest(f"camera images are ['C', 3, {size}, {size}], got {list(images.shape)}", "images")
        rows: Tensor = self.net(images.flatten(0, -4))
        return rows.reshape(*images.shape[:-4], -1, self.config.out)
