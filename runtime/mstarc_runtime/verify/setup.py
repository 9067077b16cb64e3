"""Where and in what precision a verification computes, and how a model's verifier is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mstarc_runtime.cache.pool import PAGE_SIZE, PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import TransformerEngine
from mstarc_runtime.verify.golden import Case, Golden, UnusableFolder
from mstarc_runtime.verify.report import Report

ENTRIES = 8192  # of a cache
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Setup:
    """`dtype`: of weights and KV cache where a component has a choice; codecs and Whisper are f32 always.

    `rules`: by node of the model's spec, how its binding maps the tensors of a checkpoint.
    """

    device: str = "cpu"
    dtype: str = "float32"
    rules: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def node(self) -> dict[str, Any]:
        """The section of a node whose component has a choice."""
        return {"dtype": self.dtype}

    def checkpoint(self, path: Path, node: str) -> Checkpoint:
        """A folder as the checkpoint of a node."""
        return Checkpoint(path=path, rules=tuple(self.rules.get(node, ())))

    def engine(self, geometry: Geometry, dtype: str | None = None) -> TransformerEngine:
        """A paged engine whose free entries are poisoned."""
        kind = DTYPES[dtype or self.dtype]
        page = PAGE_SIZE if self.device == "cpu" else PAGE_SIZE_GPU
        pool = PagedPool(geometry, ENTRIES // page, page_size=page, dtype=kind, device=self.device, poison=True)
        return TransformerEngine(pool)


@dataclass(frozen=True, slots=True)
class Item:
    """One case to verify: `run` adds its comparisons to the report."""

    name: str
    run: Callable[[Report], None]


def items_of(golden: Golden, runs: Mapping[str, Callable[[Case, Report], None]]) -> list[Item]:
    """The cases that a folder lists, each with what checks it. runs: by an output that a case may give. Raises UnusableFolder."""
    found = []
    for case in golden.listed():
        known = next((runs[role] for role in case.outputs if role in runs), None)
        if known is None:
            raise UnusableFolder(f"case `{case.name}` gives none of {', '.join(runs)}")
        found.append(Item(case.name, partial(known, case)))
    return found
