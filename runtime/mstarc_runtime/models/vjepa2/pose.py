"""Poses of a robot arm's end: xyz (metres), xyz Euler angles (radians), gripper in [0, 1]; and what an action does to them."""

from __future__ import annotations

import torch
from torch import Tensor


def next_pose(pose: Tensor, action: Tensor) -> Tensor:
    """The pose [..., 7] after an action [..., 7], f32: xyz added, R(action) · R(pose), gripper added and clipped to [0, 1].

    Computed in f64. Source: the public V-JEPA 2-AC planner.
    """
    start, change = pose.double(), action.double()
    turned = angles(turn(change[..., 3:6]) @ turn(start[..., 3:6]))
    gripper = (start[..., 6:] + change[..., 6:]).clamp(0, 1)
    return torch.cat([start[..., :3] + change[..., :3], turned, gripper], dim=-1).float()


def poses_along(pose: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Pose [..., 7] and actions [..., H, 7] -> the pose before each action [..., H, 7], and the one after the last [..., 7]."""
    poses = []
    for step in range(actions.shape[-2]):
        poses.append(pose)
        pose = next_pose(pose, actions[..., step, :])
    return torch.stack(poses, dim=-2), pose


def turn(angle: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] of xyz Euler angles [..., 3] about fixed axes: Rz · Ry · Rx."""
    (cx, cy, cz), (sx, sy, sz) = angle.cos().unbind(-1), angle.sin().unbind(-1)
    rows = [
        torch.stack([cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz], dim=-1),
        torch.stack([cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz], dim=-1),
        torch.stack([-sy, sx * cy, cx * cy], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def angles(matrix: Tensor) -> Tensor:
    """xyz Euler angles [..., 3] of rotation matrices [..., 3, 3]; where y is a right angle, z is taken as 0."""
    across = torch.hypot(matrix[..., 0, 0], matrix[..., 1, 0])
    locked = across < 1e-7
    x = torch.atan2(
        torch.where(locked, -matrix[..., 1, 2], matrix[..., 2, 1]),
        torch.where(locked, matrix[..., 1, 1], matrix[..., 2, 2]),
    )
    z = torch.where(locked, 0.0, torch.atan2(matrix[..., 1, 0], matrix[..., 0, 0]))
    return torch.stack([x, torch.atan2(-matrix[..., 2, 0], across), z], dim=-1)
