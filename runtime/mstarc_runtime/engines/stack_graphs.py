"""A stateless op with `batch stack` whose shapes are fixed, captured once per batch size: static inputs in, one replay a call.

Batches are padded to a bucket: the rows beyond compute along. An op with `random` draws from static keys, which are set with its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.engines.op_graphs import Capture, capture_each
from mstarc_runtime.sampling.op_noise import DeviceDraws, key_columns
from mstarc_runtime.sampling.philox import DrawKey

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


class StackGraph:
    """Replays of one op by bucket. Made at start-up; all calls must go to one queue of the device."""

    def __init__(
        self,
        method: Callable[..., Any],
        inputs: Sequence[Tensor],
        site: str,
        most: int,
        device: torch.device,
        capture: Capture,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """inputs: the arguments of one request, for their shapes. site: `walk/op` where the op draws, else "".

        `method` takes the generator, if there is a site, and the arguments [B, ...]. Captures batches of up to `most`.
        """
        self._method, self._site, self.most = method, site, most
        self._inputs = [value.new_zeros(most, *value.shape) for value in inputs]
        self._keys = torch.zeros(2, most, dtype=torch.int64, device=device)
        buckets = [*(bucket for bucket in BUCKETS if bucket < most), most]
        self._replays = capture_each(buckets, self._work, capture, progress)

    def fits(self, columns: Sequence[Tensor]) -> bool:
        """Whether a call with these arguments [B, ...] can be replayed."""
        return all(
            len(column) <= self.most and column.shape[1:] == static.shape[1:]
            for column, static in zip(columns, self._inputs, strict=True)
        )

    @torch.inference_mode()
    def run(self, columns: Sequence[Tensor], keys: Sequence[DrawKey]) -> Any:
        """What the method gives for arguments [B, ...] with these keys, one a row (none if it does not draw)."""
        rows = len(columns[0])
        bucket = min(size for size in self._replays if size >= rows)
        for static, column in zip(self._inputs, columns, strict=True):
            static[:rows].copy_(column)
        if keys:
            host = torch.from_numpy(key_columns(keys))
            self._keys[:, :rows].copy_(host.pin_memory() if self._keys.is_cuda else host, non_blocking=True)
        results = self._replays[bucket]()
        if isinstance(results, tuple):
            return tuple(result[:rows].clone() for result in results)
        return None if results is None else results[:rows].clone()

    def _work(self, bucket: int) -> Any:
        seed, j = self._keys[:, :bucket]
        noise = [DeviceDraws(seed, j, self._site)] if self._site else []
        return self._method(*noise, *[static[:bucket] for static in self._inputs])
