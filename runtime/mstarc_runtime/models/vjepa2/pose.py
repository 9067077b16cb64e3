"""Poses of a robot arm's end: xyz (metres), xyz Euler angles (radians), gripper in [0, 1]; and what an action does to them. No torch."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64: TypeAlias = NDArray[np.float64]


def next_pose(pose: ArrayLike, action: ArrayLike) -> NDArray[np.float32]:
    """The pose [..., 7] after an action [..., 7], f32: xyz added, R(action) · R(pose), gripper added and clipped to [0, 1].

    Computed in f64. Source: the public V-JEPA 2-AC planner.
    """
    start, change = np.asarray(pose, np.float64), np.asarray(action, np.float64)
    turned = angles(turn(change[..., 3:6]) @ turn(start[..., 3:6]))
    gripper = np.clip(start[..., 6:] + change[..., 6:], 0, 1)
    found: NDArray[Any] = np.concatenate([start[..., :3] + change[..., :3], turned, gripper], axis=-1)
    return found.astype(np.float32)


def poses_along(pose: ArrayLike, actions: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Pose [..., 7] and actions [..., H, 7] -> the pose before each action [..., H, 7], and the one after the last [..., 7]."""
    steps = np.asarray(actions, np.float32)
    now = np.broadcast_to(np.asarray(pose, np.float32), (*steps.shape[:-2], 7))
    poses = []
    for step in range(steps.shape[-2]):
        poses.append(now)
        now = next_pose(now, steps[..., step, :])
    return np.stack(poses, axis=-2), now


def turn(angle: F64) -> F64:
    """Rotation matrices [..., 3, 3] of xyz Euler angles [..., 3] about fixed axes: Rz · Ry · Rx."""
    (cx, cy, cz), (sx, sy, sz) = np.moveaxis(np.cos(angle), -1, 0), np.moveaxis(np.sin(angle), -1, 0)
    rows = [
        np.stack([cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz], axis=-1),
        np.stack([cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz], axis=-1),
        np.stack([-sy, sx * cy, cx * cy], axis=-1),
    ]
    return np.stack(rows, axis=-2)


def angles(matrix: F64) -> F64:
    """xyz Euler angles [..., 3] of rotation matrices [..., 3, 3]; where y is a right angle, z is taken as 0."""
    across = np.hypot(matrix[..., 0, 0], matrix[..., 1, 0])
    locked = across < 1e-7
    x = np.arctan2(
        np.where(locked, -matrix[..., 1, 2], matrix[..., 2, 1]), np.where(locked, matrix[..., 1, 1], matrix[..., 2, 2])
    )
    z = np.where(locked, 0.0, np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0]))
    return np.stack([x, np.arctan2(-matrix[..., 2, 0], across), z], axis=-1)
