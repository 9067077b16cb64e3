"""Arrays as bytes and back, with torch, without it, and for what cannot travel."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mstarc_runtime.abi.values import Flat, WireError, flatten, is_array, restore, size_of

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


def back(flat: Flat, bits: bool = False) -> object:
    return restore(flat.dtype, flat.shape, np.frombuffer(flat.data, np.uint8).copy(), bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_numpy_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, size=shape).astype(dtype)
    again = back(flatten(array))
    assert isinstance(again, np.ndarray)
    assert again.dtype == array.dtype and again.shape == shape
    assert np.array_equal(again, array)


def test_strides_and_byte_order_are_undone() -> None:
    array = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::-3]
    again = back(flatten(array))
    assert isinstance(again, np.ndarray)
    assert np.array_equal(again, array)
    assert again.dtype == np.dtype("<i4") and again.flags.c_contiguous


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, "i4,f4")]
)
def test_other_dtypes_are_refused(array: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(WireError, match="cannot travel"):
        flatten(array)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    plain = torch.arange(6, dtype=torch.int64).reshape(2, 3).t().requires_grad_(False)
    again = back(flatten(plain))
    assert isinstance(again, np.ndarray) and again.tolist() == plain.tolist()
    assert is_array(plain) and not is_array([1.0])
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        for tensor in (
            torch.tensor([[0.5, -2.0, 1.5]]).to(dtype).t(),
            torch.tensor(0.25).to(dtype),
            torch.zeros(0).to(dtype),
        ):
            found = back(flatten(tensor))
            assert isinstance(found, torch.Tensor)
            assert found.dtype == dtype and found.shape == tensor.shape
            assert torch.equal(found.float(), tensor.float())
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj()
    for view in (lazy, lazy.imag, torch.ones(3, requires_grad=True)):
        found = back(flatten(view))
        assert isinstance(found, np.ndarray) and found.tolist() == view.tolist()
    with pytest.raises(WireError, match="cannot travel"):
        flatten(torch.eye(3).to_sparse())


def test_bits_of_a_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    bits = back(flatten(torch.tensor([1.0, -1.0], dtype=torch.bfloat16)), bits=True)
    assert isinstance(bits, np.ndarray)
    assert bits.dtype == np.uint16 and bits.tolist() == [0x3F80, 0xBF80]


def test_bfloat16_without_torch_is_a_clear_error_and_torch_stays_unloaded() -> None:
    code = """
import sys, numpy as np
import mstarc_runtime.transport.port, mstarc_runtime.transport.local, mstarc_runtime.launch.child
from mstarc_runtime.abi.values import WireError, restore
try:
    restore("bfloat16", (2,), np.zeros(4, np.uint8))
except WireError as error:
    print(error)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert "without torch" in done.stdout and "float32" in done.stdout
    assert done.stdout.endswith("False\n")


def test_sizes_are_checked() -> None:
    assert size_of("float32", (2, 3)) == 24 and size_of("bfloat16", ()) == 2
    with pytest.raises(WireError, match="takes 8 bytes, 7 came"):
        restore("int64", (1,), np.zeros(7, np.uint8))
    for dtype, shape in (("float33", (1,)), ("int8", (-1,)), ("int8", (1,) * 33)):
        with pytest.raises(WireError):
            size_of(dtype, shape)
    with pytest.raises(WireError):
        restore("int8", (0, 1 << 63), np.zeros(0, np.uint8))
