"""Orpheus for tests: the shipped package on the tiny reference checkpoints, with parts that write down or dictate ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.linked import Linked, OpLink
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.engines.component import Checkpoint, Noise, Run
from mstarc_runtime.package import load_conductor
from tests.e2e.harness import ROOT

GOLDEN = ROOT / "tests" / "goldens" / "orpheus"
CASES: dict[str, Any] = json.loads((GOLDEN / "cases.json").read_text())
TENSORS = load_file(GOLDEN / "cases.safetensors")
FIRST, END, VOCABULARY = 128266, 128258, 156940
SPEECH = TENSORS["stream.tokens"].tolist()  # 10 frames
SPLIT = """
default = 0
[ranks.0]
device = "cpu"
threads = 1
[ranks.1]
device = "cpu"
threads = 1
[place]
snac = 1
"""


def tokenize(text: str, voice: str) -> np.ndarray[Any, Any]:
    """The prompt that a test writes: ids with spaces between them."""
    return np.array([int(word) for word in text.split()], dtype=np.int64)


class Recorder:
    """In place of the codec: the samples of a window begin with its 28 ids."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Recorder:
        return cls()

    def decode(self, noise: Noise, ids: Tensor) -> Tensor:
        return torch.nn.functional.pad(ids.float(), (0, 2048 - 28))


class Dictated:
    """In place of the language model: after a prompt [n] come the ids of n frames of the reference stream, then the end, and
    after that ids that would be heard if anything still listened."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Dictated:
        return cls()

    def read(self, run: Run, ids: Tensor) -> Tensor:
        rows = ids.new_zeros(len(ids), 2, 24).float()  # what is cached: how many frames to write
        rows += ids[:, None, None]
        for layer in range(3):
            run.attend(layer, rows.repeat(1, 2, 1), rows, rows)
        return self._logits([0] * len(run.rows), ids[run.last])

    def step(self, run: Run, token: Tensor) -> Tensor:
        rows = token.new_zeros(len(token), 2, 24).float()
        for layer in range(3):
            seen = run.attend(layer, rows.repeat(1, 2, 1), rows, rows)
        count = run.positions + 1  # entries, the prompt's one among them
        frames = (seen[:, 0, 0] * count).round().long()
        return self._logits((count - 1).tolist(), frames)

    def _logits(self, places: list[int], frames: Tensor) -> Tensor:
        logits = torch.full((len(places), VOCABULARY), -10.0)
        for row, (place, count) in enumerate(zip(places, frames.tolist(), strict=True)):
            end = 7 * count
            logits[row, SPEECH[place % 70] if place != end else END] = 10.0
        return logits


def linked(folder: Path, ranks: int = 1, **parts: type) -> Linked:
    """The shipped package on the reference checkpoints; `parts` (`llm`, `snac`) take the place of components."""
    (folder / "split.toml").write_text(SPLIT)
    checkpoints = {"orpheus": str(GOLDEN), "snac": str(GOLDEN / "snac")}
    placement = "1xcpu" if ranks == 1 else str(folder / "split.toml")
    program = link_package(str(ROOT / "generated" / "orpheus"), placement, checkpoints).linked
    nodes = []
    for node in program.nodes:
        config = {**node.config, "noise": False} if node.name == "snac" else node.config
        part = parts.get(node.name)
        name = node.component if part is None else f"{part.__module__}.{part.__qualname__}"
        ops = [_wide(op) for op in node.ops] if part is Dictated else node.ops
        nodes.append(replace(node, config=config, component=name, ops=ops))
    return replace(program, nodes=nodes, externs={"tokenize": f"{__name__}.tokenize"})


def _wide(op: OpLink) -> OpLink:
    """The op with logits over the published vocabulary, which the reference ids are of."""
    return replace(op, outputs=[replace(port, dims=[VOCABULARY]) for port in op.outputs])


def heard_from(program: Linked, first: int, end: int) -> Linked:
    """The program with other ids for the first audio code and the end of speech: the tiny vocabulary has no real ones."""
    nodes = [replace(node, config={**node.config, "first_id": first}) for node in program.nodes]
    return replace(program, nodes=nodes, config={**program.config, "first": first, "end": end})


@asynccontextmanager
async def in_process(program: Linked, shuffle: int | None = None) -> AsyncIterator[Engine]:
    """A started engine whose ranks run in this process; afterwards it holds nothing."""
    engine = Engine(program, load_conductor(program), LocalCluster(program, shuffle))
    await engine.start()
    try:
        yield engine
        assert not any(engine.gauges().values()), engine.gauges()
    finally:
        await engine.stop()
