"""What a rule `transform` does, by the name under `by`: the shape that it makes of shapes, and the tensor of tensors.

transpose     [a, b] -> [b, a]
flatten       [a, b, …] -> [a, b · …]
add_one       1 + w in f32: a norm that multiplies by 1 + w, as one that multiplies by w
weight_norm   a length [n, 1, …] and a direction [n, …] -> length · direction / |direction| in f32, |·| over all dims but the first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstarc_runtime.weights.files import Shape

if TYPE_CHECKING:
    from torch import Tensor


class Misshaped(Exception):
    """Why these shapes cannot be transformed."""


@dataclass(frozen=True, slots=True)
class Transform:
    """takes: how many tensors. shape: may raise Misshaped."""

    takes: int
    shape: Callable[..., Shape]
    tensor: Callable[..., Any]


def _transposed(shape: Shape) -> Shape:
    if len(shape) != 2:
        raise Misshaped("two dims are transposed")
    return shape[::-1]


def _flattened(shape: Shape) -> Shape:
    if len(shape) < 2:
        raise Misshaped("two dims or more are flattened")
    return shape[0], math.prod(shape[1:])


def _scaled(length: Shape, direction: Shape) -> Shape:
    if len(direction) < 2 or length != (direction[0], *[1] * (len(direction) - 1)):
        raise Misshaped("a length is one number for each row of its direction")
    return direction


def _directed(length: Tensor, direction: Tensor) -> Tensor:
    import torch

    length, direction = length.float(), direction.float()
    norm = torch.linalg.vector_norm(direction, dim=tuple(range(1, direction.dim())), keepdim=True)
    return direction.mul(length / norm)


TRANSFORMS: Mapping[str, Transform] = {
    "transpose": Transform(1, _transposed, lambda x: x.t().contiguous()),
    "flatten": Transform(1, _flattened, lambda x: x.flatten(1)),
    "add_one": Transform(1, lambda shape: shape, lambda x: x.float() + 1.0),
    "weight_norm": Transform(2, _scaled, _directed),
}
