"""Devices that estimates know: what a placement's `chip = "h200"` stands for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """Ceilings of one device. bandwidth: bytes/s; rate: FLOP/s of a bf16 matrix product; memory: bytes. `source` of the first two."""

    name: str
    bandwidth: float
    rate: float
    memory: float
    source: str


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("h200", 4.3e12, 790e12, 139 * 2**30, "measured: copy, and a bf16 matrix product"),
        Chip("h100", 3.35e12, 989e12, 80e9, "data sheet of the SXM5 module; not measured"),
    )
}


def number_bytes(device: str, precision: str = "") -> int:
    """Bytes of one number of weights and activations: f32 on a CPU and where a node says `fp32` or `tf32`, else bf16."""
    return 4 if device == "cpu" or precision in ("fp32", "tf32") else 2
