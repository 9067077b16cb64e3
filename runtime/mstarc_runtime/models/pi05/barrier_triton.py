"""A barrier between the stages of one kernel, whose programs all run at once: a number in memory that each of them adds to.

A program that is done with a stage adds 1 (`arrive`); stage s is over when the number is programs · (s + 1), and who reads what others
wrote in it `wait`s for that first. A program must have waited for a stage before it arrives at the next.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl


@triton.jit
def arrive(counter):
    """What this program wrote is there for those who wait."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")


POLL = tl.constexpr("""{
    .reg .pred other, early;
    .reg .u32 thread, seen;
    mov.u32 thread, %tid.x;
    setp.ne.u32 other, thread, 0;
    @other bra over;
again:
    ld.acquire.gpu.global.u32 seen, [$1];
    setp.lt.u32 early, seen, $2;
    @early bra again;
over:
    mov.u32 $0, 0;
}""")  # one thread looks: more would be in the way of those who add


@triton.jit
def wait(counter, target, NATIVE: tl.constexpr):
    """Until the number is `target`. NATIVE: on a GPU; one program alone finds it there at once."""
    if NATIVE:
        tl.inline_asm_elementwise(POLL, "=r,l,r", [counter, target], dtype=tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()


@cache
def programs(device: torch.device) -> int:
    """How many can run at once for certain: one on each multiprocessor; without a GPU one alone, which waits for nobody."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
