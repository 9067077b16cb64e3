"""Where and in what precision a verification computes, and how a model's verifier is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mstarc_runtime.cache.pool import PAGE_SIZE, PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines.transformer import TransformerEngine
from mstarc_runtime.verify.report import Report

ENTRIES = 8192  # of a cache
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Setup:
    """`dtype`: of weights and KV cache where a component has a choice; codecs and Whisper are f32 always."""

    device: str = "cpu"
    dtype: str = "float32"

    @property
    def node(self) -> dict[str, Any]:
        """The section of a node whose component has a choice."""
        return {"dtype": self.dtype}

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
