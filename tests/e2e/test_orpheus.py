"""Orpheus through the whole engine on the CPU: ids of the reference, windows of the public client, ends, batches, cancels."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import RequestFailed
from tests.e2e.harness import processes
from tests.e2e.orpheus_parts import (
    CASES,
    FIRST,
    SPEECH,
    TENSORS,
    Dictated,
    Recorder,
    heard_from,
    in_process,
    linked,
)

PROMPTS = [" ".join(map(str, TENSORS[f"lm.{n}.input_ids"].tolist())) for n in range(3)]
GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.3}
NEVER = 1_000_000  # an end id that no vocabulary has


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


async def audio(engine: Engine, text: str, seed: int = 7, **params: Any) -> tuple[list[Any], dict[str, Any]]:
    """The chunks of a request, why its loop ended and what it counted."""
    run = await engine.submit("speech", {"text": text}, params, {"audio"}, seed=seed)
    chunks = [np.asarray(event.value) async for event in run.events()]
    await asyncio.wait_for(run.freed.wait(), 5)
    return chunks, {**run.outcome.causes, "counts": run.outcome.counts}


def ids_of(chunks: list[Any]) -> list[int]:
    """The ids behind overlapping windows of 28, each of which begins 7 after the last."""
    windows: list[list[int]] = [chunk[:28].astype(int).tolist() for chunk in chunks]
    for one, next_one in itertools.pairwise(windows):
        assert one[7:] == next_one[:21]
    return windows[0] + [token for window in windows[1:] for token in window[21:]]


# --- the language model's ids


@pytest.mark.parametrize("ranks", [1, 2])
async def test_ids_equal_the_reference_alone_and_together(tmp_path: Path, ranks: int) -> None:
    program = heard_from(linked(tmp_path, ranks, snac=Recorder), 0, NEVER)
    async with in_process(program) as engine:
        alone = [await audio(engine, prompt, max_tokens=42, **GREEDY) for prompt in PROMPTS]
        together = await asyncio.gather(*[audio(engine, prompt, max_tokens=42, **GREEDY) for prompt in PROMPTS])
    for n, ((one, told), (other, _)) in enumerate(zip(alone, together, strict=True)):
        assert told["speak.frames"] == "max" and told["counts"]["speak.frames"] == 42
        assert len(one) == 3 and ids_of(one) == ids_of(other)
        assert ids_of(one)[:24] == TENSORS[f"lm.{n}.generated_pen1.3"].tolist()


async def test_without_a_penalty_the_ids_are_the_others_of_the_reference(tmp_path: Path) -> None:
    program = heard_from(linked(tmp_path, snac=Recorder), 0, NEVER)
    async with in_process(program) as engine:
        for n, prompt in enumerate(PROMPTS):
            chunks, _ = await audio(engine, prompt, max_tokens=28, temperature=0.0, repetition_penalty=1.0)
            assert ids_of(chunks)[:24] == TENSORS[f"lm.{n}.generated_pen1.0"].tolist()


@pytest.mark.parametrize("n", range(3))
async def test_the_end_id_stops_where_the_reference_stops(tmp_path: Path, n: int) -> None:
    case = CASES["lm"]["prompts"][n]["stop_case"]
    program = heard_from(linked(tmp_path, snac=Recorder), 0, case["stop_token_id"])
    async with in_process(program) as engine:
        chunks, told = await audio(engine, PROMPTS[n], max_tokens=60, **GREEDY)
        assert told["speak.frames"] == "stop" and not chunks
        assert told["counts"]["speak.frames"] == len(case["stream_tokens"])
        heard, told = await audio(engine, PROMPTS[n], max_tokens=60, ignore_eos=True, **GREEDY)
        assert told["speak.frames"] == "max" and case["stop_token_id"] in ids_of(heard)


# --- the stream and the codec


@pytest.mark.parametrize("ranks", [1, 2])
async def test_streamed_audio_is_that_of_the_public_client(tmp_path: Path, ranks: int) -> None:
    """Ten frames give windows 0 … 6: frames 1 … 7, each once; frames 0, 8 and 9 are never heard, nor what follows the end."""
    async with in_process(linked(tmp_path, ranks, llm=Dictated)) as engine:
        chunks, told = await audio(engine, "10", temperature=0.0, repetition_penalty=1.0)
    wanted = TENSORS["stream.upstream_emitted"].numpy()
    assert told["speak.frames"] == "stop" and told["counts"]["speak.frames"] == 70
    assert len(chunks) == 7
    assert np.abs(np.stack(chunks) - wanted).max() <= 1e-4 * np.abs(wanted).max()
    coarse = (np.stack(chunks) * 32767).astype(np.int16).astype(int)
    assert np.abs(coarse - TENSORS["stream.upstream_emitted_int16"].numpy()).max() <= 1


async def test_every_number_of_frames(tmp_path: Path) -> None:
    """n frames make max(0, n - 3) windows; a batch of all of them is each alone, in whatever order the ranks run."""
    wanted = [[SPEECH[7 * w : 7 * w + 28] for w in range(max(0, n - 3))] for n in range(1, 11)]
    for shuffle in (None, 1, 2):
        async with in_process(linked(tmp_path, 2, llm=Dictated, snac=Recorder), shuffle) as engine:
            params: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
            found = await asyncio.gather(*[audio(engine, str(n), **params) for n in range(1, 11)])
        for (chunks, told), windows in zip(found, wanted, strict=True):
            assert [chunk[:28].astype(int).tolist() for chunk in chunks] == windows and told["speak.frames"] == "stop"


async def test_an_end_that_is_ignored_is_not_decoded(tmp_path: Path) -> None:
    """`ignore_eos` goes on after the end id, which is no audio id and so never reaches the codec."""
    async with in_process(linked(tmp_path, llm=Dictated, snac=Recorder)) as engine:
        chunks, told = await audio(engine, "5", max_tokens=64, ignore_eos=True, temperature=0.0, repetition_penalty=1.0)
    assert told["speak.frames"] == "max" and all(token >= FIRST for token in ids_of(chunks))
    assert ids_of(chunks)[:35] == SPEECH[:35] and ids_of(chunks)[35] == SPEECH[36]


async def test_drawn_noise_belongs_to_the_request(tmp_path: Path) -> None:
    """With noise: equal seeds give equal samples, alone and in a batch with others; other seeds give others."""
    program = linked(tmp_path, llm=Dictated)
    noisy = replace(program, nodes=[replace(node, config={**node.config, "noise": True}) for node in program.nodes])
    params: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
    async with in_process(noisy) as engine:
        alone, _ = await audio(engine, "6", seed=1, **params)
        again = await asyncio.gather(
            audio(engine, "6", seed=1, **params), audio(engine, "6", seed=2, **params), audio(engine, "9", **params)
        )
    assert len(alone) == 3
    for one, other, third in zip(alone, again[0][0], again[1][0], strict=True):
        assert np.abs(one - other).max() <= 1e-5 and np.abs(one - third).max() > 1e-3


# --- processes, cancels


async def test_two_processes_and_a_cancel_in_the_middle(tmp_path: Path) -> None:
    async with processes(linked(tmp_path, 2, llm=Dictated)) as engine:
        params: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
        long = {**params, "ignore_eos": True, "max_tokens": 8000}
        chunks, _ = await audio(engine, "10", **params)
        run = await engine.submit("speech", {"text": "10"}, long, {"audio"})
        heard = 0
        with pytest.raises(RequestFailed, match="cancel"):
            async for _ in run.events():
                heard += 1
                if heard == 3:
                    run.cancel()
        await asyncio.wait_for(run.freed.wait(), 5)
        assert heard >= 3
        for _ in range(50):
            held = {
                name: value
                for gauges in (engine.gauges(), *engine.worker_gauges.values())
                for name, value in gauges.items()
                if value and any(word in name for word in ("running", "freeing", "pages_used", "walks", "streams"))
            }
            if not held:
                break
            await asyncio.sleep(0.1)
        assert not held
        after, _ = await audio(engine, "10", **params)
        assert all(np.array_equal(one, other) for one, other in zip(chunks, after, strict=True))
    wanted = TENSORS["stream.upstream_emitted"].numpy()
    assert np.abs(np.stack(chunks) - wanted).max() <= 1e-4 * np.abs(wanted).max()
