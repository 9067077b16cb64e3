"""Where Triton kernels can run: on a CUDA device, or in Triton's interpreter on the CPU (TRITON_INTERPRET=1, with triton installed)."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def device_for_kernels() -> str:
    """The device, or a skip of the whole module that says why."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed", allow_module_level=True)
    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device, and TRITON_INTERPRET is not 1", allow_module_level=True)
    return "cuda"


def dtypes_for_kernels() -> list[torch.dtype]:
    """The interpreter computes with numpy, which has no bf16."""
    return [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
