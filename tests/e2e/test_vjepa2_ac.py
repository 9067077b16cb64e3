"""specs/vjepa2_ac.walk on the reference checkpoint: rollouts over the paged cache, teacher forcing and plans, from frames on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.vjepa2.components import Critic, FrameEncoder, Predictor
from mstarc_runtime.models.vjepa2.pose import poses_along
from mstarc_runtime.worker.device_regions import DeviceOptions
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.waits import CallWait
from tests.e2e.shipped import ask, linked, near, running
from tests.engines.test_op_graphs import Counted
from tests.models.vjepa2_cases import Cases
from tests.runtime.device_harness import Ask, LateRunner, assert_same, run
from tests.shipped import loader

GOLDEN = Cases("vjepa2_ac")
FRAMES = GOLDEN.tensor("encode_frames", "clip")[0].transpose(0, 1).numpy()  # [4, 3, 64, 64]; all cases begin with them
N, D = 16, 88


@pytest.fixture(scope="module")
def program() -> Any:
    return linked("vjepa2_ac", {"vjepa2_ac": GOLDEN.folder})


def array(case: str, name: str) -> Any:
    return GOLDEN.tensor(case, name).numpy()


def rollout(case: str, states: str = "pose") -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The request of a rollout case. states: `pose`, the first one only, or `states`, one for each action."""
    actions = array(case, "actions")[0]
    return (
        "rollout",
        {"video": FRAMES[:1], "actions": actions, "states": array(case, states)[0]},
        {"horizon": len(actions)},
    )


def recomputed(actions: Any, pose: Any) -> Any:
    """The rollout without a cache: every step runs the whole prefix and keeps the last frame [H, n, D]."""
    encoder, predictor = (
        loader("vjepa2_ac")(cls, Checkpoint(path=GOLDEN.folder), {}) for cls in (FrameEncoder, Predictor)
    )
    critic = Critic.share(predictor, {}, "cpu")
    states = torch.from_numpy(poses_along(pose, actions)[0])
    given = torch.from_numpy(actions)
    with torch.inference_mode():
        path = encoder.frames(torch.from_numpy(FRAMES[:1]))
        for step in range(1, len(actions) + 1):
            path = torch.cat([path, critic.teach(path, given[:step], states[:step])[-1:]])
    return path[1:].numpy()


async def test_features_and_teacher_forcing(program: Any) -> None:
    case = "teacher_forced"
    given = {"actions": array(case, "actions")[0], "states": array(case, "states")[0]}
    async with running(program) as engine:
        (features,) = (await ask(engine, "features", {"video": FRAMES}))["video"]
        (made,) = (await ask(engine, "predict", {"video": FRAMES, **given}))["video"]
    near(features.reshape(1, -1, D), array("encode_frames", "features_normed"))
    near(made.reshape(1, -1, D), array(case, "predicted_normed"))


async def test_rollouts_equal_full_recomputation(program: Any) -> None:
    """H = 1, 4, 8 with poses from the first one or given, one by one and all in one engine at once."""
    cases = [(case, states) for case in GOLDEN.named("rollout") for states in ("pose", "states")]
    async with running(program) as engine:
        alone = [await ask(engine, *rollout(*each)) for each in cases]
        together = await asyncio.gather(*[ask(engine, *rollout(*each)) for each in cases])
        live = await ask(engine, *_live(rollout("rollout_h4")))
    for (case, _), found in [*zip(cases, alone, strict=True), *zip(cases, together, strict=True)]:
        tolerance = 1e-4 if case == "rollout_h1" else 5e-4
        near(found["video"][0].reshape(-1, N, D), array(case, "predicted"), tolerance)
    near(np.stack(live["video"]), array("rollout_h4", "predicted"), 5e-4)


def _live(request: tuple[str, dict[str, Any], dict[str, Any]]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return request[0], request[1], request[2] | {"live": True}


async def test_the_horizon_is_a_param_up_to_32(program: Any) -> None:
    """A horizon below the number of actions uses the first of them; 32 is the longest; 33 and too few actions are refused."""
    actions = np.random.default_rng(1).normal(0, 0.2, (32, 7)).astype(np.float32)
    inputs = {"video": FRAMES[:1], "actions": actions, "states": np.zeros((1, 7), np.float32)}
    async with running(program) as engine:
        longest, short = await asyncio.gather(
            *[ask(engine, "rollout", inputs, {"horizon": horizon}) for horizon in (32, 5)]
        )
        for params, inputs_of, message in (
            ({"horizon": 33}, inputs, "horizon"),
            ({"horizon": 5}, inputs | {"actions": actions[:4]}, "A >= horizon"),
        ):
            with pytest.raises(BadRequest, match=message):
                await ask(engine, "rollout", inputs_of, params)
    whole = recomputed(actions, np.zeros(7, np.float32))
    near(longest["video"][0].reshape(-1, N, D), whole, 5e-4)
    near(short["video"][0].reshape(-1, N, D), whole[:5], 5e-4)


@pytest.mark.parametrize("case", GOLDEN.named("plan"))
async def test_candidates_are_rolled_out_together(program: Any, case: str) -> None:
    """One request with K candidates, and K rollouts batched by the engine, give the same frames."""
    actions = array(case, "actions")
    async with running(program) as engine:
        (goal,) = (
            await ask(engine, "features", {"video": GOLDEN.tensor(case, "goal_clip")[0].transpose(0, 1).numpy()})
        )["video"]
        inputs = {"video": FRAMES[:1], "actions": actions, "states": array(case, "pose")[0], "goal": goal[0]}
        planned = await ask(engine, "plan", inputs)
        rollouts = await asyncio.gather(
            *[
                ask(engine, "rollout", {"video": FRAMES[:1], "actions": each, "states": array(case, "pose")[0]},
                    {"horizon": len(each)})
                for each in actions
            ]
        )  # fmt: skip
    near(goal, array(case, "goal"))
    tolerance = 5e-4 if actions.shape[1] >= 4 else 1e-4
    near(planned["video"][0], array(case, "predicted"), tolerance)
    near(np.stack([found["video"][0].reshape(-1, N, D) for found in rollouts]), array(case, "predicted"), tolerance)
    assert np.abs(planned["tensor"][0] - array(case, "costs")).max() <= 1e-5
    assert int(planned["scalar"][0]) == GOLDEN.cases[case]["expect"]["best_index"]


async def test_candidates_in_one_pass(program: Any) -> None:
    case = "score_k3_single_pass"
    inputs = {"video": FRAMES[:3], "actions": array(case, "actions"), "states": array(case, "states")}
    async with running(program) as engine:
        found = await ask(engine, "choose", inputs | {"goal": array(case, "goal")[0]})
    near(found["video"][0], array(case, "predicted_normed").reshape(3, 3, N, D)[:, -1])
    assert np.abs(found["tensor"][0] - array(case, "costs")).max() <= 1e-5
    assert int(found["scalar"][0]) == GOLDEN.cases[case]["expect"]["best_index"]


@pytest.mark.parametrize(
    ("request_name", "changed", "field"),
    [
        ("rollout", {"actions": np.zeros((4, 6), np.float32)}, "actions"),
        ("rollout", {"states": np.zeros((2, 7), np.float32)}, "states"),
        ("rollout", {"states": np.zeros((1, 6), np.float32)}, "states"),
        ("rollout", {"video": np.zeros((65, 64, 64, 3), np.uint8)}, "video"),
        ("predict", {"actions": np.zeros((3, 7), np.float32)}, "states"),
        ("predict", {}, "actions"),
    ],
)
async def test_what_does_not_fit_is_refused(
    program: Any, request_name: str, changed: dict[str, Any], field: str
) -> None:
    case = "rollout_h4"
    inputs = {"video": FRAMES[:1], "actions": array(case, "actions")[0], "states": array(case, "states")[0]}
    async with running(program) as engine:
        with pytest.raises(BadRequest) as caught:
            await ask(engine, request_name, inputs | changed, {"horizon": 4})
    assert caught.value.field == field


@pytest.mark.parametrize("unroll", [0, 3])
async def test_rollouts_as_launches(program: Any, unroll: int) -> None:
    """Side by side, live and not, fewer steps and more than a launch holds: on the device's path what the host's loop gives."""
    asks = []
    for case, live, delay in (("h8", False, 0), ("h4", True, 0), ("h8", True, 30), ("h1", False, 5), ("h4", False, 60)):
        _, inputs, params = rollout(f"rollout_{case}")
        asks.append(Ask(inputs, params | {"live": live}, seed=1, delay=delay))
    wanted = await run(program, "rollout", asks, "host")
    found = await run(program, "rollout", asks, DeviceOptions(LateRunner(2), unroll, 1))
    assert_same(found, wanted, asks)
    assert found.host_iterations == 0
    assert {(loop.name, loop.unroll) for loop in found.loops} == {
        ("imagine_dream", unroll or 1),
        ("imagine_dream_2", unroll or 1),
    }
    near(np.float32(found.seen[0].events[0][1]).reshape(-1, N, D), array("rollout_h8", "predicted"), 5e-4)


def test_first_frames_of_several_requests_are_one_replay(program: Any) -> None:
    """Captured once, for all walks that call the op; what has another shape is run as it is."""
    table = OpTable(program, 0)
    encoder = table.bound("encoder.frames").method

    runner = Counted()
    table.capture_stacks(program.walks, runner, lambda done, total, what: None)
    assert runner.captured == 4  # 1, 2, 4, 8
    for walk, rows in (("imagine", 1), ("search", 3), ("imagine", 8)):
        videos = [torch.from_numpy(FRAMES[k % 4 : k % 4 + 1]) + k for k in range(rows)]
        waits = [CallWait("encoder.frames", (video,), (), (), None, walk) for video in videos]
        found = table.call_rows("encoder.frames", [(SimpleNamespace(), wait) for wait in waits])  # type: ignore[misc]
        for features, video in zip(found, videos, strict=True):
            torch.testing.assert_close(features, encoder(video), rtol=1e-4, atol=1e-4)
    assert runner.replayed == 3
    whole = torch.from_numpy(FRAMES)
    wait = CallWait("encoder.frames", (whole,), (), (), None, "encode")
    (features,) = table.call_rows("encoder.frames", [(SimpleNamespace(), wait)])  # type: ignore[list-item]
    torch.testing.assert_close(features, encoder(whole), rtol=1e-4, atol=1e-4)
    assert runner.replayed == 3
