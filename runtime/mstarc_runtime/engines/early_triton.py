"""Kernels that start early (programmatic dependent launch): while the kernel before ends, they begin, and those with weights load some.

A kernel with EARLY calls `gdc_launch_dependents` first: the next kernel may begin. Then it loads what no kernel of the chain writes, and
it `gdc_wait`s before it touches anything else. The waits form a chain: a kernel that has passed its own knows that all before it are
done. But it may begin when many before it have only begun: what an earlier kernel writes may be loaded before the wait only if one between
them lets the next begin after its own wait. A kernel without EARLY begins when all before it are done, and so begins a chain. Compute
capability 9.0 has both instructions; elsewhere EARLY is False.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@cache
def early(device: torch.device) -> dict[str, Any]:
    """Launch options of kernels with EARLY on the device."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@triton.jit
def in_turn(EARLY: tl.constexpr):
    """The beginning of a kernel with EARLY that has nothing to load before its turn."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
