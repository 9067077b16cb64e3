"""Kernels in CUDA C++: source and constants in, launchable functions out. Compiled once per machine, by NVRTC, which torch's wheels carry.

What was compiled is kept on disk under a digest of all that it depends on, so that only the first start takes the seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from mstarc_runtime.errors import LoadError

log = logging.getLogger("mstarc.kernels")
KEPT = Path("~/.cache/mstarc/kernels")
_SHARED_MEMORY_MOST = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STARTS_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_BF16, _PROMOTE_256, _MAP_ALIGNED = 9, 3, 64  # of a CUtensorMap


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of the driver, with a number as value."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15)]


class _Shape(ctypes.Structure):
    """CUlaunchConfig of the driver."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("blocks", "blocks_y", "blocks_z", "threads", "threads_y", "threads_z", "shared")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


class Function:
    """A kernel on the current device. Its one argument is a struct."""

    def __init__(self, image: bytes, name: str, shared: int) -> None:
        """shared: bytes of dynamic shared memory. Raises LoadError."""
        torch.cuda.current_stream().synchronize()  # torch's context is the thread's current one
        module, self._function, self._shared = ctypes.c_void_p(), ctypes.c_void_p(), shared
        _done(_driver().cuModuleLoadData(ctypes.byref(module), image))
        _done(_driver().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        _done(_driver().cuFuncSetAttribute(self._function, _SHARED_MEMORY_MOST, shared))

    def clusters(self, blocks: int, threads: int) -> int:
        """How many of its clusters the device has room for at once, in a launch of so many blocks."""
        found, shape = ctypes.c_int(), _Shape(blocks, 1, 1, threads, 1, 1, self._shared)
        _done(_driver().cuOccupancyMaxActiveClusters(ctypes.byref(found), self._function, ctypes.byref(shape)))
        return found.value

    def launch_early(self, blocks: int, threads: int, argument: ctypes.Structure) -> None:
        """On torch's current stream, before the kernel before has ended (see `early_triton`), or LoadError."""
        early = ctypes.pointer(_Attribute(_STARTS_EARLY, 0, 1))
        stream = torch.cuda.current_stream().cuda_stream
        shape = _Shape(blocks, 1, 1, threads, 1, 1, self._shared, stream, early, 1)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        _done(_driver().cuLaunchKernelEx(ctypes.byref(shape), self._function, arguments, None))


class TensorMap(ctypes.Structure):
    """CUtensorMap: how kernels fetch boxes of a tensor, swizzled over the width of a box, with zeros for what lies beyond it."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]

    @classmethod
    def of(cls, tensor: Tensor, *box: int) -> TensorMap:
        """Boxes of a bf16 tensor with a dense last dim, of which they take 16, 32 or 64; the others are multiples of 16 bytes apart.

        Raises LoadError.
        """
        held = ctypes.create_string_buffer(ctypes.sizeof(cls) + _MAP_ALIGNED)
        place, rank = -(-ctypes.addressof(held) // _MAP_ALIGNED) * _MAP_ALIGNED, tensor.dim()
        sizes, taken = (ctypes.c_uint64 * rank)(*tensor.shape[::-1]), (ctypes.c_uint32 * rank)(*box[::-1])
        apart = (ctypes.c_uint64 * (rank - 1))(*(2 * stride for stride in tensor.stride()[-2::-1]))
        whole = (ctypes.c_void_p(place), _BF16, rank, ctypes.c_void_p(tensor.data_ptr()), sizes, apart, taken)
        dense, swizzle = (ctypes.c_uint32 * rank)(*[1] * rank), {16: 1, 32: 2, 64: 3}[box[-1]]
        _done(_driver().cuTensorMapEncodeTiled(*whole, dense, 0, swizzle, _PROMOTE_256, 0))
        return cls.from_buffer_copy(ctypes.string_at(place, ctypes.sizeof(cls)))


def wgmma(name: str, columns: int, held: bool = False, turned: bool = False) -> str:
    """A device function `name`: c += x · weight, or c = if not `add`, of 64 rows and so many columns over 16 inputs, by tensor cores.

    x is a descriptor of shared memory, or if `held` four words of registers. weight is a descriptor, if `turned` of rows of columns.
    """
    count, first = columns // 2, 4 if held else 1  # sums of a lane; operands of x
    sums = ", ".join(f"%{n}" for n in range(count))
    both = ", ".join(f'"+f"(c[{n}])' for n in range(count))
    x = f"{{{', '.join(f'%{count + n}' for n in range(4))}}}" if held else f"%{count}"
    given = "const unsigned int (&x)[4]" if held else "unsigned long long x"
    read = ", ".join(f'"r"(x[{n}])' for n in range(4)) if held else '"l"(x)'
    flags = f"1, 1, {int(turned)}" if held else f"1, 1, 0, {int(turned)}"
    return (
        f"__device__ __forceinline__ void {name}(float (&c)[{count}], {given}, unsigned long long weight, int add) {{\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + first + 1}, 0;\\n"\n'
        f'                 "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "\n'
        f'                 "{{{sums}}}, {x}, %{count + first}, p, {flags};\\n}}"\n'
        f'                 : {both} : {read}, "l"(weight), "r"(add));\n}}\n'
    )


def compiled(source: Path, constants: Mapping[str, int], before: str = "") -> bytes:
    """The machine code of a file for Hopper, its constants defined, with text put before it. Raises LoadError with the compiler's words."""
    options = ["-arch=sm_90a", "-std=c++17", *(f"-D{name}={value}" for name, value in sorted(constants.items()))]
    text = before.encode() + source.read_bytes()
    digest = hashlib.sha256(
        b"\0".join([text, str(_version()).encode(), *(each.encode() for each in options)])
    ).hexdigest()
    place = KEPT.expanduser() / f"{source.stem}-{digest[:32]}.cubin"
    try:
        return place.read_bytes()
    except OSError:
        image = _compile(text, source.name, options)
    try:  # whole or not at all: another process may look for it
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_suffix(f".{os.getpid()}")
        partial.write_bytes(image)
        partial.replace(place)
    except OSError as error:
        log.warning("%s was compiled and cannot be kept: %s", source.name, error)
    return image


def _compile(text: bytes, name: str, options: list[str]) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _passed(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None), b"")
    given = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
    failed, size = nvrtc.nvrtcCompileProgram(program, len(options), given), ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    words = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, words)
    _passed(failed, words.value)
    _passed(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), b"")
    image = ctypes.create_string_buffer(size.value)
    _passed(nvrtc.nvrtcGetCUBIN(program, image), b"")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _passed(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), b"")
    return major.value, minor.value


@cache
def _nvrtc() -> ctypes.CDLL:
    """The library of torch's CUDA version: in the wheels beside torch, or where the loader finds it."""
    name = f"libnvrtc.so.{str(torch.version.cuda).split('.')[0]}"
    beside = importlib.util.find_spec("nvidia")
    folders = [Path(each) for each in beside.submodule_search_locations or ()] if beside else []
    for place in [path for folder in folders for path in sorted(folder.glob(f"*/lib/{name}"))]:
        for builtins in place.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))  # which the compiler asks for by its name alone
        return ctypes.CDLL(str(place))
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name)
    raise LoadError(f"{name}, the compiler of CUDA kernels, is not there: torch's wheels bring it as nvidia-cuda-nvrtc")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _passed(code: int, words: bytes) -> None:
    if code:
        _nvrtc().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise LoadError(f"NVRTC: {_nvrtc().nvrtcGetErrorString(code).decode()} {words.decode(errors='replace')}")


def _done(code: int) -> None:
    if code:
        words = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(words))
        raise LoadError(f"CUDA driver: {(words.value or b'').decode()} ({code})")
