"""The Whisper components on the paged engine: three requests batched with each other give the stored reference ids and logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from tests.models.whisper_dense import close
from tests.shipped import loader

load = loader("whisper")

WHISPER = Path(__file__).parents[1] / "goldens" / "whisper"
IDS: dict[str, Any] = json.loads((WHISPER / "cases.json").read_text())["ids"]
TENSORS = load_file(WHISPER / "cases.safetensors")
ENGLISH, GERMAN = TENSORS["dec.en_transcribe.prompt"], TENSORS["dec.de_translate.prompt"]
# features, prompt, expected ids
REQUESTS = [
    ("mel.features", ENGLISH, "dec.en_transcribe"),
    ("mel.features", GERMAN, "dec.de_translate"),
    ("short.features", ENGLISH, "short"),
]
LISTEN = OpSpec("scribe.listen", params=("packed",), results=(), attend="full", positions="same")
READ = OpSpec("scribe.read", params=("packed",), cross=True)
STEP = OpSpec("scribe.step", params=("scalar",), cross=True)


def next_id(logits: Tensor, first: bool) -> int:
    allowed = logits.clone()
    allowed[[*IDS["suppress_tokens"], *(IDS["begin_suppress_tokens"] if first else [])]] = -torch.inf
    return int(allowed.argmax())


@pytest.mark.parametrize("together", [True, False])
def test_reference_ids_on_pages(together: bool) -> None:
    checkpoint = Checkpoint(path=WHISPER)
    encoder, scribe = load(Encoder, checkpoint, {}, "cpu"), load(Scribe, checkpoint, {}, "cpu")
    facts = scribe.config
    geometry = Geometry(
        facts.decoder_layers, facts.decoder_heads, facts.decoder_heads, facts.d_model // facts.decoder_heads
    )
    pool = PagedPool.from_bytes(geometry, 8 << 20)
    free = pool.free_pages
    groups = [REQUESTS] if together else [[request] for request in REQUESTS]
    for group in groups:
        decode(TransformerEngine(pool), encoder, scribe, group)
    assert pool.free_pages == free


def decode(engine: TransformerEngine, encoder: Encoder, scribe: Scribe, group: list[tuple[str, Tensor, str]]) -> None:
    """Greedy decoding of a batch, requests leaving as they end; then every context is dropped."""
    states = [encoder.encode(TENSORS[features]) for features, _, _ in group]
    sounds, saids = ([Context(engine.pool) for _ in group] for _ in range(2))
    assert (
        engine.call(scribe.listen, LISTEN, [Call((s,), (c,), len(s)) for s, c in zip(states, sounds, strict=True)])
        == ()
    )
    parts = zip(group, saids, sounds, strict=True)
    (logits,) = engine.call(
        scribe.read, READ, [Call((p,), (said,), len(p), cross=sound) for (_, p, _), said, sound in parts]
    )
    ids, raw = [[next_id(row, True)] for row in logits], [[row] for row in logits]
    while active := [i for i, mine in enumerate(ids) if mine[-1] != IDS["eot"] and len(mine) < 30]:
        calls = [Call((torch.tensor(ids[i][-1]),), (saids[i],), 1, cross=sounds[i]) for i in active]
        (logits,) = engine.call(scribe.step, STEP, calls)
        for i, row in zip(active, logits, strict=True):
            raw[i].append(row)
            ids[i].append(next_id(row, False))
    for (_, prompt, name), mine, rows, said, sound in zip(group, ids, raw, saids, sounds, strict=True):
        assert mine == TENSORS[f"{name}.generated"].tolist()
        assert (sound.length, sound.position, said.length) == (200, 0, len(prompt) + len(mine) - 1)
        if name != "short":
            close(torch.stack(rows), TENSORS[f"{name}.generated_logits"])
        for context in (said, sound):
            context.drop()
