"""specs/pi05.walk, compiled and run with the reference checkpoint: what requests emit is what the model gives by itself."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import TransformerEngine
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.pi05.flow import flow, geometry, look
from mstarc_runtime.models.pi05.host import Pi05Host
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.models.pi05.vision import Vision
from mstarc_runtime.program import Part
from mstarc_runtime.sampling.philox import DrawKey, normals
from tests.e2e.shipped import linked, running
from tests.models.vjepa2_cases import Cases, close
from tests.shipped import loader

load = loader("pi05")

GOLDEN = Cases("pi05")
CHECKPOINT = Checkpoint(path=GOLDEN.folder)
STATE = [-1.0, -0.5, 0.0, 0.5]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of single characters."""
    folder = tmp_path_factory.mktemp("pi05")
    letters = {"<pad>": 0, "<bos>": 1} | {chr(code): code for code in (10, *range(32, 127))}
    tokenizer = Tokenizer(WordLevel(letters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def serving(package: Path) -> AbstractAsyncContextManager[Engine]:
    return running(linked("pi05", {"pi05": GOLDEN.folder, "tokenizer": package}))


async def action(run: RequestRun) -> torch.Tensor:
    async with asyncio.timeout(30):
        events = [event async for event in run.events()]
    assert [event.modality for event in events] == ["action"]
    return torch.as_tensor(np.asarray(events[0].value))


def alone(
    package: Path, images: list[Any], task: str, state: list[float] | None, steps: int, seed: int
) -> torch.Tensor:
    """The same request without a plan."""
    host = Pi05Host.load({"pi05": CHECKPOINT, "tokenizer": Checkpoint(path=package)}, {})
    vision, policy = load(Vision, CHECKPOINT, {}, "cpu"), load(Policy, CHECKPOINT, {}, "cpu")
    seen = vision.encode(torch.from_numpy(np.asarray(host.cameras(images))))
    engine = TransformerEngine(PagedPool.from_bytes(geometry(policy.config), 1 << 20))
    contexts = look(engine, policy, [(seen, torch.from_numpy(host.prompt(task, state)))])
    noise = torch.as_tensor(np.asarray(normals((10, 8), DrawKey(seed, "flow/x", 0))))
    return flow(engine, policy, contexts, noise[None], steps)[0][0]


async def test_requests_through_the_plan(package: Path) -> None:
    """One to three cameras, with and without a state, of any size and of the tower's, together in one engine: each as by itself."""
    pictures = [GOLDEN.tensor("image_preprocess", f"image_u8_{k}").numpy() for k in (0, 1, 0)]
    asked = [
        (pictures, "pick up", STATE, 10, 1),
        (pictures[1:2], "put down", None, 5, 2),
        (pictures[:2], "open", STATE, 10, 1),
        ([np.random.default_rng(7).integers(0, 256, (56, 56, 3), np.uint8)] * 2, "close", None, 5, 3),
    ]
    async with serving(package) as engine:
        runs = [
            await engine.submit(
                "act",
                {"images": [Part("image", data=each) for each in images], "task": task, "state": state},
                {"flow_steps": steps},
                seed=seed,
            )
            for images, task, state, steps, seed in asked
        ]
        actions = await asyncio.gather(*[action(run) for run in runs])
    for got, request in zip(actions, asked, strict=True):
        close(got, alone(package, *request), 1e-5)
    assert not torch.allclose(actions[0], actions[2], atol=1e-3)


async def test_a_wrong_image_is_refused_and_others_run(package: Path) -> None:
    picture = GOLDEN.tensor("image_preprocess", "image_u8_0").numpy()
    async with serving(package) as engine:
        good = await engine.submit("act", {"images": [Part("image", data=picture)], "task": "go"}, {}, seed=3)
        with pytest.raises(BadRequest, match=r"`images\[0\]` is none of a \.npy file, PNG"):
            await engine.submit("act", {"images": [Part("image", data=b"GIF89a")], "task": "go"}, {}, seed=3)
        close(await action(good), alone(package, [picture], "go", None, 10, 3), 1e-5)
