"""Arrays as JSON and msgpack: what comes back is what was sent, of every dtype; broken messages are refused with their place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.serving.tensors import JSON, Form, pack, parse_msgpack, pieces, plain, read_array
from tests.serving.robot import packed

DTYPES = ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=1, max_dims=4, min_side=0)))


@settings(max_examples=60)
@given(ARRAYS)
def test_arrays_travel(array: Any) -> None:
    for found in (
        parse_msgpack(pack(plain({"x": array}, Form(binary=True))))["x"],
        parse_msgpack(packed({"x": array.astype(array.dtype.newbyteorder(">"))}))["x"],
        read_array(json.loads(json.dumps(plain(array, Form(packed=True)))), "x"),
    ):
        assert found.dtype == array.dtype and found.shape == array.shape
        assert found.tobytes() == np.ascontiguousarray(array).tobytes()


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0, 3, 2**16 - 1, 2**16, 2**21 + 5]), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9)),
)
def test_pieces_are_the_packed_value(sizes: list[int], others: dict[str, int]) -> None:
    """The same value as `pack` writes, whatever is cut out of it; large arrays are their own memory."""
    each = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    value = plain({"a": [*each, others], "b": None, **others}, Form(binary=True))
    found = pieces(value)
    assert msgspec.msgpack.decode(b"".join(found)) == msgspec.msgpack.decode(pack(value))
    apart = [np.frombuffer(piece, np.uint8) for piece in found if isinstance(piece, memoryview)]
    assert sum(map(len, apart)) == sum(size for size in sizes if size >= 2**16)
    assert all(any(np.shares_memory(piece, array) for array in each) for piece in apart)


def test_lists_hold_null_for_what_json_lacks() -> None:
    array = np.array([[1.5, np.nan], [np.inf, -2]], np.float32)
    assert plain(array, JSON) == [[1.5, None], [None, -2.0]]
    assert json.loads(json.dumps(plain(np.arange(6).reshape(2, 3), JSON))) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b"\xc1", None),
        (b"\x81\xa1a", None),
        (msgspec.msgpack.encode({1: 2}), None),
        (msgspec.msgpack.encode({"a": {b"\xff": 1}}), "a"),
        (msgspec.msgpack.encode({"a": [msgspec.msgpack.Ext(5, b"x")]}), "a[0]"),
        (msgspec.msgpack.encode({"a": {"__ndarray__": True}}), "a.dtype"),
        (
            msgspec.msgpack.encode({"a": {"__ndarray__": True, "dtype": "<f4", "shape": [2**40, 2**40], "data": b""}}),
            "a.shape",
        ),
        (
            msgspec.msgpack.encode({"a": {"__ndarray__": True, "dtype": "<f4", "shape": [1] * 40, "data": b"1234"}}),
            "a.shape",
        ),
        (msgspec.msgpack.encode({"a": {"__npgeneric__": True, "dtype": "<f4", "data": "x"}}), "a.data"),
        (msgspec.msgpack.encode({"a": {"__npgeneric__": True, "dtype": "<U4", "data": "x"}}), "a.dtype"),
        (b"\x91" * 100_000 + b"\xc0", None),
        (b"\x91" * 200 + b"\xc0", None),
    ],
)
def test_broken_messages(message: bytes, field: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_msgpack(message)
    assert field is None or caught.value.field == field
