"""Arithmetic on one number per request, many torch operations as one Triton kernel.

Between two ops, a captured loop counts, compares and selects: some thirty operations on tensors of B numbers. Each would be a kernel of
its own, which takes longer to start than to run. Under `RowPrograms` such an operation is only written down, and the program runs as one
kernel before anything else can look at its values: before another torch operation, before a Triton kernel, and at the end.

Written down are comparisons, boolean operations, selections, and sums of integers, of [B] tensors (or expanded ones). Lane i computes
element i of everything, so operations in place are no exception. Everything else runs as it does without the mode.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mstarc_runtime.engines.early_triton import early

Operand: TypeAlias = Tensor | bool | int | float
Write: TypeAlias = Callable[["RowPrograms", Tensor | None, Sequence[Any], int], Tensor]

_TYPES = {
    torch.bool: "tl.int1",
    torch.int8: "tl.int8",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}
_VIEWS = ("view", "expand", "slice", "select", "unsqueeze", "squeeze", "as_strided", "transpose", "permute", "t")
_READS_NOTHING = frozenset((*_VIEWS, "empty", "new_empty", "empty_like", "empty_strided"))


@dataclass(slots=True)
class _Cell:
    """A tensor of the program, the name of its value by now, and whether that has to be stored."""

    tensor: Tensor
    value: str
    written: bool


class RowPrograms(TorchDispatchMode):
    """The mode, for tensors of so many rows on one device. Triton's interpreter does not say when it launches: call `flush` there."""

    def __init__(self, device: torch.device, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._rows = device, rows
        self._lines: list[str] = []
        self._cells: dict[tuple[int, torch.dtype, int], _Cell] = {}  # by address, dtype, and stride (0 or 1)

    def __enter__(self) -> RowPrograms:
        triton.knobs.runtime.launch_enter_hook.add(self._launching)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)  # type: ignore[no-untyped-call]
        triton.knobs.runtime.launch_enter_hook.remove(self._launching)
        if why[0] is None:
            self.flush()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = _OPERATIONS.get(func)
        if found is not None and found.takes(self, args, kwargs):
            if self._crosses(args):
                self.flush()
            target = args[0] if found.in_place else None
            return found.write(self, target, args, kwargs.get("alpha", 1))
        if func.overloadpacket.__name__ not in _READS_NOTHING:
            self.flush()
        return func(*args, **kwargs)

    def outside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, run without the mode: what an op computes is not worth looking at, and a mode looks at every operation."""

        def run(*args: Any) -> Any:
            self.flush()
            super(RowPrograms, self).__exit__(None, None, None)  # type: ignore[no-untyped-call]
            try:
                return method(*args)
            finally:
                super(RowPrograms, self).__enter__()  # type: ignore[no-untyped-call]

        return run

    def _launching(self, metadata: Any) -> None:
        self.flush()

    def flush(self) -> None:
        """Run what is written down."""
        if not self._lines:
            return
        cells, lines = list(self._cells.values()), self._lines
        self._cells, self._lines = {}, []
        stores = [f"tl.store(p{n} + at, {cell.value}, mask=inside)" for n, cell in enumerate(cells) if cell.written]
        kernel = _kernel((*lines, *stores), len(cells))
        block = max(32, triton.next_power_of_2(self._rows))
        kernel[(1,)](*[cell.tensor for cell in cells], self._rows, BLOCK=block, num_warps=1, **early(self._device))

    # -------------------------------------------------------------------------------------------------- what is written

    def is_row(self, value: Any) -> bool:
        """Whether a program can hold the value: a scalar, or a tensor with a number per row."""
        if not isinstance(value, Tensor):
            return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        fits = value.shape == (self._rows,) and (self._rows == 1 or value.stride(0) in (0, 1))
        return fits and value.device == self._device and value.dtype in _TYPES

    def _key(self, tensor: Tensor) -> tuple[int, torch.dtype, int]:
        return tensor.data_ptr(), tensor.dtype, 1 if self._rows == 1 else tensor.stride(0)

    def _crosses(self, args: Sequence[Any]) -> bool:
        """Whether a tensor overlaps with one of the program without being the same: then lanes would depend on each other."""
        return any(
            self._key(arg) != key and _overlap(arg, cell.tensor)
            for arg in args
            if isinstance(arg, Tensor)
            for key, cell in self._cells.items()
        )

    def value(self, operand: Operand, dtype: torch.dtype) -> str:
        """The operand's value in a dtype, as an expression."""
        if not isinstance(operand, Tensor):
            number = float(operand) if dtype.is_floating_point else operand
            return f"tl.full([BLOCK], {number!r}, {_TYPES[dtype]})"
        key = self._key(operand)
        if key not in self._cells:
            name = f"p{len(self._cells)}"
            self._lines.append(f"v{name} = tl.load({name} + at{'' if key[2] else ' * 0'}, mask=inside)")
            if operand.dtype == torch.bool:
                self._lines.append(f"v{name} = v{name} != 0")
            self._cells[key] = _Cell(operand, f"v{name}", False)
        held = self._cells[key].value
        if operand.dtype == dtype:
            return held
        return f"({held} != 0)" if dtype == torch.bool else f"{held}.to({_TYPES[dtype]})"

    def assign(self, target: Tensor | None, dtype: torch.dtype, value: str) -> Tensor:
        """A new tensor of that dtype becomes the value, or a target, which may have another one."""
        made = torch.empty(self._rows, dtype=dtype, device=self._device) if target is None else target
        if made.dtype != dtype:
            value = f"(({value}) != 0)" if made.dtype == torch.bool else f"({value}).to({_TYPES[made.dtype]})"
        key = self._key(made)
        cell = self._cells.setdefault(key, _Cell(made, "", True))
        cell.value, cell.written = f"x{len(self._lines)}", True
        self._lines.append(f"{cell.value} = {value}")
        return made


@dataclass(frozen=True, slots=True)
class _Operation:
    """How an operation is written down. whole: only of integers, whose arithmetic is the same everywhere; booleans: only of these."""

    write: Write
    in_place: bool = False
    whole: bool = False
    booleans: bool = False

    def takes(self, programs: RowPrograms, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        operands = (*args, *kwargs.values())
        if not tensors or kwargs.keys() - {"alpha"} or not all(map(programs.is_row, operands)):
            return False
        if self.in_place and (args[0].stride() == (0,) or args[0].dtype.is_floating_point):
            return False
        if self.booleans:
            return all(tensor.dtype == torch.bool for tensor in tensors)
        if self.whole:
            fractions = any(t.dtype.is_floating_point for t in tensors) or any(isinstance(o, float) for o in operands)
            return not fractions and isinstance(args[0], Tensor) and args[0].dtype != torch.bool
        return True


def _overlap(one: Tensor, other: Tensor) -> bool:
    sizes = [t.element_size() * (t.numel() if t.stride(0) else 1) for t in (one, other)]
    low, high = one.data_ptr(), other.data_ptr()
    return low < high + sizes[1] and high < low + sizes[0]


def _compare(sign: str, programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    dtype = torch.result_type(args[0], args[1])
    return programs.assign(
        target, torch.bool, f"{programs.value(args[0], dtype)} {sign} {programs.value(args[1], dtype)}"
    )


def _join(sign: str, programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    """Bits of integers and booleans."""
    dtype = torch.result_type(args[0], args[1])
    return programs.assign(target, dtype, f"{programs.value(args[0], dtype)} {sign} {programs.value(args[1], dtype)}")


def _logic(sign: str, programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    first, second = (programs.value(arg, torch.bool) for arg in args)
    return programs.assign(target, torch.bool, f"{first} {sign} {second}")


def _sum(sign: str, programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    dtype = torch.result_type(args[0], args[1])
    first, second = (programs.value(arg, dtype) for arg in args)
    return programs.assign(target, dtype, f"{first} {sign} {second} * {alpha}")


def _negate(programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    return programs.assign(target, torch.bool, f"{programs.value(args[0], torch.bool)} == 0")


def _where(programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    dtype = torch.result_type(args[1], args[2])
    chosen = programs.value(args[0], torch.bool)
    return programs.assign(
        target, dtype, f"tl.where({chosen}, {programs.value(args[1], dtype)}, {programs.value(args[2], dtype)})"
    )


def _fill(programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    dtype = args[0].dtype
    chosen = programs.value(args[1], torch.bool)
    return programs.assign(
        target, dtype, f"tl.where({chosen}, {programs.value(args[2], dtype)}, {programs.value(args[0], dtype)})"
    )


def _copy(programs: RowPrograms, target: Tensor | None, args: Sequence[Any], alpha: int) -> Tensor:
    return programs.assign(target, args[-1].dtype, programs.value(args[-1], args[-1].dtype))


def _operations() -> dict[Any, _Operation]:
    """By torch's overload."""
    aten = torch.ops.aten
    found: dict[Any, _Operation] = {
        aten.logical_not.default: _Operation(_negate),
        aten.logical_not_.default: _Operation(_negate, in_place=True),
        aten.bitwise_not.default: _Operation(_negate, booleans=True),
        aten.where.self: _Operation(_where),
        aten.where.ScalarSelf: _Operation(_where),
        aten.where.ScalarOther: _Operation(_where),
        aten.masked_fill.Scalar: _Operation(_fill),
        aten.masked_fill_.Scalar: _Operation(_fill, in_place=True),
        aten.copy_.default: _Operation(_copy, in_place=True),
        aten.clone.default: _Operation(_copy),
    }
    for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        for kind in ("Tensor", "Scalar"):
            found[getattr(getattr(aten, name), kind)] = _Operation(partial(_compare, sign))
    for name, sign in {"and": "&", "or": "|", "xor": "^"}.items():
        for kind in ("Tensor", "Scalar"):
            found[getattr(getattr(aten, f"bitwise_{name}"), kind)] = _Operation(partial(_join, sign))
            found[getattr(getattr(aten, f"bitwise_{name}_"), kind)] = _Operation(partial(_join, sign), in_place=True)
            found[getattr(getattr(aten, f"__{name}__"), kind)] = _Operation(partial(_join, sign))
            found[getattr(getattr(aten, f"__i{name}__"), kind)] = _Operation(partial(_join, sign), in_place=True)
        found[getattr(aten, f"logical_{name}").default] = _Operation(partial(_logic, sign))
        found[getattr(aten, f"logical_{name}_").default] = _Operation(partial(_logic, sign), in_place=True)
    for name, sign in {"add": "+", "sub": "-"}.items():
        for kind in ("Tensor", "Scalar"):
            found[getattr(getattr(aten, name), kind)] = _Operation(partial(_sum, sign), whole=True)
            found[getattr(getattr(aten, f"{name}_"), kind)] = _Operation(partial(_sum, sign), in_place=True, whole=True)
    return found


_OPERATIONS = _operations()


@cache
def _kernel(lines: tuple[str, ...], pointers: int) -> Any:
    """A kernel of one program that runs the lines. Programs of a loop are few, and the same in every step."""
    arguments = ", ".join(f"p{n}" for n in range(pointers))
    text = "\n    ".join(
        (
            f"def row_program({arguments}, rows, BLOCK: tl.constexpr, EARLY: tl.constexpr):",
            "if EARLY:",
            "    gdc_launch_dependents()",
            "    gdc_wait()",
            "at = tl.arange(0, BLOCK)",
            "inside = at < rows",
            *lines,
        )
    )
    name = f"<row program {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # where triton looks for the source
    space: dict[str, Any] = {"__name__": __name__}
    exec("import triton.language as tl\nfrom triton.language.extra.cuda import gdc_launch_dependents, gdc_wait", space)
    exec(compile(text, name, "exec"), space)
    return triton.jit(space["row_program"], do_not_specialize=["rows"])
