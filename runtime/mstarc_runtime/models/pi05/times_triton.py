"""What the expert's norms take from the time of a flow step, kept on the device by time: the times of one flow come again in the next.

Scale, shift and gate of all norms are a linear map that reads more than the step's matrices. A time that is there costs a look; another one
is computed and takes the place of the one that was used least lately. Nothing here waits for the host, so that it can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

KEPT = 128  # times; a call has at most so many rows


@triton.jit
def _find(times, used, clock, t, slot, fresh, count, KEPT: tl.constexpr):
    at = tl.arange(0, KEPT)
    known, age = tl.load(times + at), tl.load(used + at)
    now = tl.load(clock) + 1
    for each in range(count):
        wanted = tl.load(t + each)
        hits = (known == wanted).to(tl.int32)
        hit = tl.max(hits, 0)
        place = tl.where(hit > 0, tl.argmax(hits, 0), tl.argmin(age, 0))
        known = tl.where(at == place, wanted, known)
        age = tl.where(at == place, now, age)
        tl.store(slot + each, place)
        tl.store(fresh + each, 1 - hit)
    tl.store(times + at, known)
    tl.store(used + at, age)
    tl.store(clock, now)


@triton.jit
def _waved(t, speeds, weight, bias, out, fresh, count, HALF: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr):
    """silu(weight · (sines, cosines of the time) + bias) of fresh rows; the angles are f64."""
    at, column = tl.arange(0, PAD), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = (column < 2 * HALF)[:, None] & (at < HALF)[None, :]
    for each in range(count):
        if tl.load(fresh + each) != 0:
            angle = tl.load(t + each).to(tl.float64) * tl.load(speeds + at, mask=at < HALF, other=0.0)
            place = weight + column[:, None] * (2 * HALF) + at[None, :]
            some = tl.load(place, mask=kept, other=0.0) * tl.sin(angle).to(tl.float32)[None, :]
            some += tl.load(place + HALF, mask=kept, other=0.0) * tl.cos(angle).to(tl.float32)[None, :]
            total = tl.sum(some, 1) + tl.load(bias + column, mask=column < 2 * HALF, other=0.0)
            tl.store(out + each * (2 * HALF) + column, total / (1.0 + tl.exp(-total)), mask=column < 2 * HALF)


@triton.jit
def _mapped(
    x, weight, bias, out, slot, fresh, count, width,
    INSIDE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr, BY_SLOT: tl.constexpr,
):  # fmt: skip
    """weight · x + bias of fresh rows, into their slots or rows."""
    at = tl.arange(0, PAD)
    for each in range(count):
        if tl.load(fresh + each) != 0:
            to = out + each * width
            if BY_SLOT:
                to = out + tl.load(slot + each).to(tl.int64) * width
            some = tl.load(x + each * INSIDE + at, mask=at < INSIDE, other=0.0)
            for block in range(tl.program_id(0), tl.cdiv(width, BLOCK), tl.num_programs(0)):
                column = block * BLOCK + tl.arange(0, BLOCK)
                kept = (column < width)[:, None] & (at < INSIDE)[None, :]
                rows = tl.load(weight + column[:, None].to(tl.int64) * INSIDE + at[None, :], mask=kept, other=0.0)
                total = tl.sum(rows * some[None, :], 1) + tl.load(bias + column, mask=column < width, other=0.0)
                if SILU:
                    total = total / (1.0 + tl.exp(-total))
                tl.store(to + column, total, mask=column < width)


@triton.jit
def _shifted(
    parts, matrices, out, slot, fresh, count, norms, part_stride, width,
    STEP: tl.constexpr, FIRST: tl.constexpr, INSIDE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """matrix · shift of fresh rows, of every STEP-th norm from FIRST on: matrices [width, INSIDE], at addresses in `matrices`."""
    at = tl.arange(0, PAD)
    blocks = tl.cdiv(width, BLOCK)
    for each in range(count):
        if tl.load(fresh + each) != 0:
            held = tl.load(slot + each).to(tl.int64)
            for task in range(tl.program_id(0), norms * blocks, tl.num_programs(0)):
                norm = task // blocks
                matrix = tl.load(matrices + norm).to(tl.pointer_type(DTYPE))
                number = STEP * norm + FIRST
                shift = tl.load(
                    parts + held * part_stride + (3 * number + 1) * INSIDE + at, mask=at < INSIDE, other=0.0
                )
                column = task % blocks * BLOCK + tl.arange(0, BLOCK)
                kept = (column < width)[:, None] & (at < INSIDE)[None, :]
                some = tl.load(matrix + column[:, None] * INSIDE + at[None, :], mask=kept, other=0.0).to(tl.float32)
                tl.store(
                    out + (held * norms + norm) * width + column, tl.sum(some * shift[None, :], 1), mask=column < width
                )


class Shifts:
    """matrix · shift of every other norm, f32 [KEPT, matrices, width], for the matrices that read the norms `first`, `first` + 2, ..."""

    def __init__(self, matrices: Sequence[Tensor], first: int) -> None:
        self._matrices, self._first = tuple(matrices), first
        device, width = matrices[0].device, len(matrices[0])
        self._places = torch.tensor([matrix.data_ptr() for matrix in matrices], device=device)
        self.values = torch.zeros(KEPT, len(matrices), width, device=device)

    def update(self, parts: Tensor, slot: Tensor, fresh: Tensor) -> None:
        """Of the times that are fresh, from parts as of `Times`."""
        one = self._matrices[0]
        width, inside = one.shape
        _shifted[(264,)](
            parts, self._places, self.values, slot, fresh, len(slot), len(self._matrices), parts.stride(0), width, STEP=2,
            FIRST=self._first, INSIDE=inside, PAD=triton.next_power_of_2(inside), BLOCK=8, DTYPE=_DTYPES[one.dtype], num_warps=4,
        )  # fmt: skip


_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Times:
    """The maps of the last `KEPT` times. parts f32 [KEPT, norms, 3, width]: scale, shift and gate.

    shifts: what else is kept by time.
    """

    def __init__(
        self, time_in: nn.Linear, time_out: nn.Linear, modulation: nn.Linear, speeds: Tensor, shifts: Sequence[Shifts] = ()
    ) -> None:  # fmt: skip
        self._shifts = shifts
        self._nets, self._speeds = (time_in, time_out, modulation), speeds
        device, width = speeds.device, time_in.out_features
        self.parts = torch.zeros(KEPT, modulation.out_features // (3 * width), 3, width, device=device)
        self._times = torch.full((KEPT,), float("nan"), device=device)
        self._used = torch.zeros(KEPT, dtype=torch.int64, device=device)
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)

    def slots(self, t: Tensor) -> Tensor:
        """Times f32 [B] -> where they are in `parts`, i32 [B]. Valid until the next call."""
        count = len(t)
        if count > KEPT:
            raise ValueError(f"{count} requests in one flow step, at most {KEPT} are possible")
        slot = torch.empty(count, dtype=torch.int32, device=t.device)
        fresh = torch.empty_like(slot)
        _find[(1,)](self._times, self._used, self._clock, t, slot, fresh, count, KEPT=KEPT, num_warps=1)
        time_in, time_out, modulation = self._nets
        width = time_in.out_features
        first, second = torch.empty(2, count, width, device=t.device)
        _waved[(triton.cdiv(width, 8),)](
            t, self._speeds, time_in.weight, time_in.bias, first, fresh, count,
            HALF=width // 2, PAD=triton.next_power_of_2(width // 2), BLOCK=8, num_warps=4,
        )  # fmt: skip
        for x, net, out, silu in ((first, time_out, second, True), (second, modulation, self.parts, False)):
            _mapped[(min(264, triton.cdiv(net.out_features, 8)),)](
                x, net.weight, net.bias, out, slot, fresh, count, net.out_features,
                INSIDE=width, PAD=triton.next_power_of_2(width), BLOCK=8, SILU=silu, BY_SLOT=not silu, num_warps=4,
            )  # fmt: skip
        for each in self._shifts:
            each.update(self.parts, slot, fresh)
        return slot
