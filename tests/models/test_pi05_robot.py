"""What a robot's client sends and gets: cameras by name, states in parts, units from the statistics of its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.pi05.host import Pi05Host
from mstarc_runtime.models.pi05.stats import Stats, read_stats
from tests.models.vjepa2_cases import Cases

GOLDEN = Cases("pi05")
BASE, LEFT = (np.full((4, 5, 3), k, np.uint8) for k in (1, 2))


def host(**node: Any) -> Pi05Host:
    return Pi05Host.load({"pi05": Checkpoint(path=GOLDEN.folder)}, {"llm": node})


def images(found: dict[str, Any]) -> list[int]:
    return [int(part.data.flat[0]) for part in found["images"]]


@pytest.mark.parametrize(
    "observation",
    [
        {
            "observation/images/left_wrist_0_rgb": LEFT,
            "observation/images/base_0_rgb": BASE,
            "observation/state": [1, 2],
        },
        {"image": {"base_0_rgb": BASE, "left_wrist_0_rgb": LEFT}, "state": np.array([1.0, 2.0])},
        {"observation.images.base_0_rgb": BASE, "images": {"left_wrist_0_rgb": LEFT}, "observation": {"state": (1, 2)}},
    ],
)
def test_names_as_clients_write_them(observation: dict[str, Any]) -> None:
    """Cameras come in the order of the slots, whatever the order and the depth of the names."""
    found = host().observe({**observation, "prompt": "fold"})
    assert images(found) == [1, 2] and found["task"] == "fold" and found["state"].tolist() == [1, 2]


def test_names_of_a_robot() -> None:
    robot = host(
        cameras=["observation/exterior_image_1_left", "observation/wrist_image_left"],
        state_names=["joint_position", "gripper_position"],
    )
    found = robot.observe(
        {
            "observation/exterior_image_1_left": np.moveaxis(BASE, 2, 0),
            "observation/wrist_image_left": LEFT.astype(np.float32) / 255,
            "observation/joint_position": np.arange(7.0),
            "observation/gripper_position": np.float32(0.5),
            "prompt": np.asarray("pick"),
        }
    )
    assert images(found) == [1, 2] and found["images"][0].data.shape == (4, 5, 3)
    assert found["state"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0.5] and found["task"] == "pick"
    assert robot.robot()["cameras"] == ["exterior_image_1_left", "wrist_image_left"]


@pytest.mark.parametrize(
    ("observation", "field", "message"),
    [
        ({"prompt": "go", "images": {"base": BASE}}, "images/base", "the cameras are base_0_rgb"),
        ({"prompt": "go", "images": {}}, "images", "has no image"),
        ({"images": {"base_0_rgb": BASE}}, "prompt", "needs one `prompt`"),
        ({"images": {"base_0_rgb": BASE}, "prompt": 7}, "prompt", "needs one `prompt`"),
        ({"images": {"base_0_rgb": BASE}, "prompt": "a", "task": "b"}, "prompt", "needs one `prompt`"),
        ({"images": {"base_0_rgb": BASE}, "image/base_0_rgb": BASE, "prompt": "a"}, "image/base_0_rgb", "are both"),
        ({"images": {"base_0_rgb": BASE * 2.0}, "prompt": "a"}, "images/base_0_rgb", "in 0..1"),
        ({"images": {"base_0_rgb": BASE}, "prompt": "a", "state": "left"}, "state", "must be numbers"),
        ({"images": {"base_0_rgb": BASE}, "prompt": "a", "state": [[1.0]]}, "state", "has 2 dims"),
    ],
)
def test_wrong_observations_are_refused(observation: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        host().observe(observation)
    assert caught.value.field == field


def test_a_part_of_the_state_that_is_missing() -> None:
    robot = host(state_names=["joints", "gripper"])
    with pytest.raises(BadRequest, match="`gripper` is missing"):
        robot.observe({"images": {"base_0_rgb": BASE}, "prompt": "a", "joints": [0.0]})


# --- units


CHUNK = GOLDEN.tensor("state_prompt", "actions_normalized")[0].numpy()
LOW, HIGH = (GOLDEN.tensor("state_prompt", f"action_{name}").numpy() for name in ("q01", "q99"))
UNITS = GOLDEN.tensor("state_prompt", "actions_robot_units")[0].numpy()


def test_actions_without_statistics_are_cut_to_the_robot() -> None:
    assert np.array_equal(host().robot_actions(CHUNK), CHUNK[:, :7])
    assert host().robot()["units"] == "normalised" and host().robot()["action_dim"] == 7


@pytest.mark.parametrize("layout", ["openpi", "lerobot", "section"])
def test_actions_in_the_units_of_the_robot(tmp_path: Path, layout: str) -> None:
    node: dict[str, Any] = {}
    if layout == "section":
        node = {"action_q01": LOW.tolist(), "action_q99": HIGH.tolist()}
    elif layout == "openpi":
        (tmp_path / "assets" / "robot").mkdir(parents=True)
        state = {"q01": [0.0] * 6, "q99": [1.0] * 6}
        groups = {"state": state, "actions": {"mean": [0.0], "q01": LOW.tolist(), "q99": HIGH.tolist()}}
        (tmp_path / "assets" / "robot" / "norm_stats.json").write_text(json.dumps({"norm_stats": groups}))
    else:
        save_file(
            {"action.q01": LOW, "action.q99": HIGH},
            tmp_path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
        )
    (tmp_path / "config.json").write_text((GOLDEN.folder / "config.json").read_text())
    robot = Pi05Host.load({"pi05": Checkpoint(path=tmp_path)}, {"llm": node})
    assert np.abs(robot.robot_actions(CHUNK) - UNITS).max() <= 1e-6
    assert robot.robot()["units"] == "robot"


def test_statistics_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_stats(tmp_path, {}) == Stats()
    for content, message in (
        ("{", "cannot be read"),
        ('{"norm_stats": {"state": {"q01": [1]}, "actions": {}}}', "two lists"),
    ):
        (tmp_path / "norm_stats.json").write_text(content)
        with pytest.raises(LoadError, match=message):
            read_stats(tmp_path, {})
    with pytest.raises(LoadError, match="must be two lists of numbers"):
        read_stats(None, {"action_q01": [1.0], "action_q99": "x"})
