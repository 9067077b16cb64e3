"""The shipped worker programs over tiny random models, for tests of region loops: the generated text is the real one.

`speech()` is `generated/orpheus` (prompt, loop of draws and sends, windows decoded on the same rank), `chat()` is the text part of
`generated/ask` (prompt, loop that emits and sends). Both return a linked program whose components and externs are in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.abi.linked import (
    CacheLink,
    ContextLink,
    Linked,
    NodeLink,
    OpLink,
    RankLink,
    SamplerLink,
    StreamLink,
    WalkLink,
)
from mstarc_runtime.abi.messages import ABI
from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.models import llama_config, llama_weights
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.program import Part

GENERATED = Path(__file__).resolve().parents[2] / "generated"
VOCAB, END, FIRST, BAD = 40, 3, 8, 7
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "tie_word_embeddings": False,
}
HERE = "tests.runtime.tiny"


class TinyLlama(Llama):
    """Random weights large enough that contexts matter; after the token `bad` a request's logits are NaN."""

    bad = -1

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> TinyLlama:
        facts = llama_config.from_mapping(config, "the test")
        weights = {
            name: value if value.dim() == 1 else value * 12 for name, value in llama_weights.random(facts, 5).items()
        }
        found = cls(facts, weights, device)
        found.bad = int(config.get("bad", -1))
        return found

    def read(self, run: Run, ids: Tensor) -> Tensor:
        return torch.where((ids[run.last] == self.bad)[:, None], torch.nan, super().read(run, ids))

    def step(self, run: Run, token: Tensor) -> Tensor:
        logits = super().step(run, token)
        return torch.where((token == self.bad)[:, None], torch.nan, logits)


class TinyCodec:
    """decode(ids [B, 28]) -> pcm [B, 5]: numbers that tell every id and its place."""

    def __init__(self, device: str) -> None:
        self.table = torch.linspace(0.1, 3.0, 28 * 5, device=device).view(28, 5)

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> TinyCodec:
        return cls(device)

    def decode(self, ids: Tensor) -> Tensor:
        return torch.sin(ids.float()[:, :, None] * self.table).sum(1)


def tokenize(text: str, voice: str) -> Any:
    """Numbers in words."""
    return np.array([int(word) for word in text.split()], dtype=np.int64)


def layout(messages: list[Part]) -> tuple[list[Part], Part]:
    """All messages but the last are prefix."""
    parts = [Part("text_part", ids=tokenize(message.text, "")) for message in messages]
    return parts[:-1], parts[-1]


def speech(
    pages: int = 200,
    capacity: int = 64,
    context: int = 400,
    bad: int = -1,
    device: str = "cpu",
    ranks: int = 1,
    swap: int | None = None,
) -> Linked:
    """`generated/orpheus`; with two ranks the codec is on the second."""
    return _linked(
        "orpheus",
        (pages, swap),
        device,
        ranks,
        config={"end": END, "first": FIRST},
        contexts=[ContextLink(name="main", cache="lm", max=context)],
        nodes=[
            _llm("lm", bad),
            NodeLink(
                name="snac",
                kind="stateless",
                component=f"{HERE}.TinyCodec",
                ops=[OpLink(name="decode", params=["plain"], results=1, batch="stack")],
            ),
        ],
        samplers=[
            SamplerLink(
                name="speech",
                settings={name: f"param:{name}" for name in ("temperature", "top_p", "repetition_penalty")},
                over="main",
            )
        ],
        streams=[
            StreamLink(
                name="codes",
                policy="sliding_window",
                args={"size": 28, "stride": 7},
                at_end="drop",
                capacity=capacity,
                source=0,
                sink=ranks - 1,
                where="where_codes",
                transport="slot" if ranks == 1 else "shm",
            )
        ],
        walks=[
            WalkLink(name="speak", rank=0, nodes=["llm"], sends=["codes"], contexts=["main"]),
            WalkLink(name="vocode", rank=ranks - 1, nodes=["snac"], takes=["codes"]),
        ],
        externs={"tokenize": f"{HERE}.tokenize"},
    )


def chat(pages: int = 200, context: int = 400, bad: int = -1, device: str = "cpu") -> Linked:
    """The walks `read` and `answer` of `generated/ask`."""
    names = ("temperature", "top_k", "top_p", "repetition_penalty")
    return _linked(
        "ask",
        (pages, None),
        device,
        1,
        config={"eos": END},
        contexts=[ContextLink(name="main", cache="lm", max=context)],
        nodes=[_llm("lm", bad)],
        samplers=[SamplerLink(name="reply", settings={name: f"param:{name}" for name in names}, over="main")],
        streams=[StreamLink(name="phrases", policy="fixed", args={"size": 1}, capacity=4, source=0, sink=0)],
        walks=[
            WalkLink(name="read", rank=0, nodes=["llm"], contexts=["main"]),
            WalkLink(name="answer", rank=0, nodes=["llm"], sends=["phrases"], contexts=["main"]),
            WalkLink(name="speak", rank=0, takes=["phrases"]),
        ],
        externs={"layout": f"{HERE}.layout"},
    )


def _llm(cache: str, bad: int) -> NodeLink:
    return NodeLink(
        name="llm",
        kind="transformer",
        cache=cache,
        component=f"{HERE}.TinyLlama",
        ops=[OpLink(name="read", params=["packed"], results=1), OpLink(name="step", params=["scalar"], results=1)],
        config={**SIZES, "bad": bad},
    )


def _linked(model: str, pages: tuple[int, int | None], device: str, ranks: int, **parts: Any) -> Linked:
    """pages: of the pool, and on the host beside it."""
    cache = CacheLink(name="lm", layers=2, heads=4, kv_heads=2, head_dim=6, pages=pages[0], swap=pages[1])
    return Linked(
        abi=ABI,
        model=model,
        package=str(GENERATED / model),
        digest="",
        ranks=[RankLink(rank=rank, device=device) for rank in range(ranks)],
        caches=[cache],
        checkpoints=[],
        **parts,
    )
