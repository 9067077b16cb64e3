"""What the expert's norms take from the time of a flow step, kept on the device by time: the times of one flow come again in the next.

Scale, shift and gate of all norms are a linear map that reads more than the step's matrices. A time that is there costs a look; another one
is computed and takes the place of the one that was used least lately. Nothing here waits for the host, so that it can be captured: one
kernel looks, and one computes what the look did not find, map by map with barriers between (`barrier_triton`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from mstarc_runtime.models.pi05.barrier_triton import arrive, programs, wait

KEPT = 128  # times; a call has at most so many rows


@triton.jit
def _find(times, used, clock, t, slot, fresh, arrived, count, KEPT: tl.constexpr):
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
    tl.store(arrived, 0)


@triton.jit
def _waved(t, speeds, weight, bias, out, fresh, count, HALF: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr):
    """silu(weight · (sines, cosines of the time) + bias) of fresh rows; the angles are f64."""
    at = tl.arange(0, PAD)
    for each in range(count):
        if tl.load(fresh + each) != 0:
            angle = tl.load(t + each).to(tl.float64) * tl.load(speeds + at, mask=at < HALF, other=0.0)
            sine, cosine = tl.sin(angle).to(tl.float32)[None, :], tl.cos(angle).to(tl.float32)[None, :]
            for block in range(tl.program_id(0), tl.cdiv(2 * HALF, BLOCK), tl.num_programs(0)):
                column = block * BLOCK + tl.arange(0, BLOCK)
                kept = (column < 2 * HALF)[:, None] & (at < HALF)[None, :]
                place = weight + column[:, None] * (2 * HALF) + at[None, :]
                some = (
                    tl.load(place, mask=kept, other=0.0) * sine + tl.load(place + HALF, mask=kept, other=0.0) * cosine
                )
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


@triton.jit
def _filled(
    t, speeds, in_weight, in_bias, out_weight, out_bias, map_weight, map_bias, waves, condition, parts, slot, fresh, arrived, count,
    map_width, matrices, shifted, width, more_matrices, more_shifted, more_width, norms, part_stride,
    HALF: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, SHIFTED: tl.constexpr, DTYPE: tl.constexpr,
    PROGRAMS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """All that is kept of fresh rows; nothing if there are none. `arrived` is 0 before."""
    wanted = 0
    for each in range(count):
        wanted += tl.load(fresh + each)
    if wanted > 0:
        _waved(t, speeds, in_weight, in_bias, waves, fresh, count, HALF, PAD // 2, BLOCK)
        arrive(arrived)
        wait(arrived, PROGRAMS, NATIVE)
        _mapped(waves, out_weight, out_bias, condition, slot, fresh, count, 2 * HALF, 2 * HALF, PAD, BLOCK, True, False)
        arrive(arrived)
        wait(arrived, 2 * PROGRAMS, NATIVE)
        _mapped(
            condition, map_weight, map_bias, parts, slot, fresh, count, map_width, 2 * HALF, PAD, BLOCK, False, True
        )
        if SHIFTED:
            arrive(arrived)
            wait(arrived, 3 * PROGRAMS, NATIVE)
            _shifted(
                parts,
                matrices,
                shifted,
                slot,
                fresh,
                count,
                norms,
                part_stride,
                width,
                2,
                0,
                2 * HALF,
                PAD,
                BLOCK,
                DTYPE,
            )
            _shifted(
                parts, more_matrices, more_shifted, slot, fresh, count, norms, part_stride, more_width, 2, 1, 2 * HALF, PAD, BLOCK, DTYPE
            )  # fmt: skip


class Shifts(NamedTuple):
    """matrix · shift of every other norm, f32 `values` [KEPT, matrices, width], for matrices [width, inside] at addresses `places`."""

    matrices: tuple[Tensor, ...]
    places: Tensor
    values: Tensor

    @classmethod
    def of(cls, matrices: Sequence[Tensor]) -> Shifts:
        """Those that read the norms 0, 2, ... or 1, 3, ..."""
        device, width = matrices[0].device, len(matrices[0])
        places = torch.tensor([matrix.data_ptr() for matrix in matrices], device=device)
        return cls(tuple(matrices), places, torch.zeros(KEPT, len(matrices), width, device=device))


_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Times:
    """The maps of the last `KEPT` times. parts f32 [KEPT, norms, 3, width]: scale, shift and gate.

    shifts: what else is kept by time, of the matrices that read norms 0, 2, ... and of those that read norms 1, 3, ...
    """

    def __init__(
        self,
        time_in: nn.Linear,
        time_out: nn.Linear,
        modulation: nn.Linear,
        speeds: Tensor,
        shifts: tuple[Shifts, Shifts] | None = None,
    ) -> None:
        self._shifts = shifts
        self._nets, self._speeds = (time_in, time_out, modulation), speeds
        device, width = speeds.device, time_in.out_features
        self.parts = torch.zeros(KEPT, modulation.out_features // (3 * width), 3, width, device=device)
        self._times = torch.full((KEPT,), float("nan"), device=device)
        self._used = torch.zeros(KEPT, dtype=torch.int64, device=device)
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(1, dtype=torch.int32, device=device)

    def slots(self, t: Tensor) -> Tensor:
        """Times f32 [B] -> where they are in `parts`, i32 [B]. Valid until the next call."""
        count = len(t)
        if count > KEPT:
            raise ValueError(f"{count} requests in one flow step, at most {KEPT} are possible")
        slot: Tensor = torch.empty(count, dtype=torch.int32, device=t.device)
        fresh = torch.empty_like(slot)
        _find[(1,)](self._times, self._used, self._clock, t, slot, fresh, self._arrived, count, KEPT=KEPT, num_warps=1)
        time_in, time_out, modulation = self._nets
        width, at_once = time_in.out_features, programs(t.device)
        waves, condition = torch.empty(2, count, width, device=t.device)
        shifts: list[Any] = [None] * 7
        options: dict[str, Any] = {"SHIFTED": False, "DTYPE": None}
        if self._shifts is not None:
            shifts = [held for each in self._shifts for held in (each.places, each.values, each.values.shape[2])]
            matrices = self._shifts[0].matrices
            shifts.append(len(matrices))
            options = {"SHIFTED": True, "DTYPE": _DTYPES[matrices[0].dtype]}
        _filled[(at_once,)](
            t, self._speeds, time_in.weight, time_in.bias, time_out.weight, time_out.bias, modulation.weight, modulation.bias, waves,
            condition, self.parts, slot, fresh, self._arrived, count, modulation.out_features, *shifts, self.parts.stride(0),
            HALF=width // 2, PAD=triton.next_power_of_2(width), BLOCK=8, PROGRAMS=at_once, NATIVE=t.is_cuda, num_warps=8,
            launch_cooperative_grid=t.is_cuda, **options,
        )  # fmt: skip
        return slot
