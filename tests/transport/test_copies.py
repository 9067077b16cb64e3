"""Copies by several threads are those of one, and messages that hold much go round the ring with them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mstarc_runtime.abi.messages import Emitted
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.copies import APART, PART, copy_all
from mstarc_runtime.transport.ring import RingReader, RingWriter, StaleRing, create
from mstarc_runtime.transport.wire import Codec


@pytest.mark.parametrize("sizes", [[], [0], [5, 0, PART], [APART], [PART + 1, 3 * APART + 7, 1, PART - 1]])
def test_every_source_is_at_its_target(sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    sources = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    targets = [np.zeros(size + 2, np.uint8) for size in sizes]
    copy_all([(target.data[1:-1], source.data) for target, source in zip(targets, sources, strict=True)])
    for target, source in zip(targets, sources, strict=True):
        assert target[0] == target[-1] == 0
        assert np.array_equal(target[1:-1], source)


def test_large_messages_go_round_the_ring() -> None:
    fd = create(1 << 23)
    writer, reader, codec = RingWriter(fd), RingReader(fd), Codec()
    os.close(fd)
    rng = np.random.default_rng(0)
    behind = codec.encode(emitted(rng.integers(0, 256, 1000)), writer)  # so that the ring does not begin anew
    for _ in range(9):
        arrays = [rng.standard_normal(size) for size in (PART // 8, APART // 8 + 3, 50_000)]
        frames = codec.encode(emitted(*arrays), writer)
        codec.decode(behind, reader)
        behind = codec.encode(emitted(rng.integers(0, 256, 10_000)), writer)
        found = codec.decode(frames, reader)
        assert isinstance(found, Emitted)
        for event, array in zip(found.events, arrays, strict=True):
            assert np.array_equal(event[3], array)
    assert codec.ring_bytes > 3 * writer.capacity
    frames = codec.encode(emitted(rng.standard_normal(APART // 8)), writer)
    codec.decode(behind, reader)
    writer.reset()
    with pytest.raises(StaleRing):
        codec.decode(frames, reader)
    with pytest.raises(WireError):
        codec.encode(emitted(rng.standard_normal(APART // 8), object()), writer)
    assert writer.free == writer.capacity
    writer.close()
    reader.close()


def emitted(*values: object) -> Emitted:
    return Emitted([(1, "walk", "tensor", value, {}) for value in values])
