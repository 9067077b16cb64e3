"""Reads the weights of an ONNX file: a path in, `{name: numpy array}` out. Needs nothing but numpy.

Only what a weight loader needs of the format is read: initialisers, and of the nodes the operator with its inputs and outputs.
Field numbers and the wire format are those of `onnx.proto` and of the protocol buffers encoding guide.

An exporter keeps the names of biases but renames the matrices it transposes or quantises. They are found again through the
graph: the product of an unnamed matrix is followed to the `Add` of a named bias, so the matrix beside `x.bias` is `x.weight`.
It is stored as the product uses it, [in, out]; an int8 one comes with `x.step`, the f32 value of one integer step.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.errors import LoadError

Arrays: TypeAlias = dict[str, NDArray[Any]]

# TensorProto.DataType -> numpy
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
}
_GRAPH = 7  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_INPUT, _OUTPUT, _OP_TYPE = 1, 2, 4  # of NodeProto
_DIMS, _DATA_TYPE, _FLOATS, _INT32S, _NAME, _RAW = 1, 2, 4, 5, 8, 9  # of TensorProto


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph: its type and the names of the values it reads and makes."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_weights(path: Path) -> Arrays:
    """Every named tensor of the file; unnamed matrices under the name that their bias tells.

    Raises `LoadError` naming the file, and the tensor where one is at fault.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        tensors, nodes = _read_graph(data)
    except (ValueError, IndexError, struct.error) as error:
        raise LoadError(f"{path}: is no readable ONNX file: {error}") from error
    return _name_matrices(path, tensors, nodes)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of one message; the value is an int or, for everything that has a length, its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"it ends {at + size - len(data)} bytes early")
        yield key >> 3, data[at : at + size]
        at += size


def _read_graph(data: memoryview) -> tuple[Arrays, list[Node]]:
    tensors: Arrays = {}
    nodes: list[Node] = []
    for field, model_part in _fields(data):
        if field != _GRAPH or isinstance(model_part, int):
            continue
        for kind, part in _fields(model_part):
            if isinstance(part, int):
                continue
            if kind == _INITIALIZER:
                name, array = _read_tensor(part)
                tensors[name] = array
            elif kind == _NODE:
                nodes.append(_read_node(part))
    if not tensors:
        raise ValueError("it holds no tensor")
    return tensors, nodes


def _read_node(data: memoryview) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    op = ""
    for field, value in _fields(data):
        if isinstance(value, int):
            continue
        if field == _INPUT:
            inputs.append(str(value, "utf-8"))
        elif field == _OUTPUT:
            outputs.append(str(value, "utf-8"))
        elif field == _OP_TYPE:
            op = str(value, "utf-8")
    return Node(op, tuple(inputs), tuple(outputs))


def _read_tensor(data: memoryview) -> tuple[str, NDArray[Any]]:
    dims: list[int] = []
    name, code = "", 0
    raw: memoryview | None = None
    typed: list[int | float] = []
    for field, value in _fields(data):
        if field == _DIMS:
            dims.extend([value] if isinstance(value, int) else _packed(value))
        elif field == _DATA_TYPE and isinstance(value, int):
            code = value
        elif field == _NAME and not isinstance(value, int):
            name = str(value, "utf-8")
        elif field == _RAW and not isinstance(value, int):
            raw = value
        elif field == _INT32S:
            typed.extend([value] if isinstance(value, int) else _packed(value))
        elif field == _FLOATS and not isinstance(value, int):
            typed.extend(struct.unpack(f"<{len(value) // 4}f", value))
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise ValueError(f"tensor `{name}` has element type {code}, which is not supported")
    flat = np.frombuffer(raw, dtype) if raw is not None else np.array(typed).astype(dtype)
    if flat.size != math.prod(dims):
        raise ValueError(f"tensor `{name}` has {flat.size} elements where its shape {dims} says {math.prod(dims)}")
    return name, flat.reshape(dims)


def _packed(data: memoryview) -> list[int]:
    at, values = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def _name_matrices(path: Path, tensors: Arrays, nodes: list[Node]) -> Arrays:
    """Give every matrix that enters a product the name that the bias behind the product has."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    named = dict(tensors)
    for node in nodes:
        if node.op not in ("MatMul", "MatMulInteger") or len(node.inputs) < 2 or node.inputs[1] not in tensors:
            continue
        matrix = node.inputs[1]
        bias = _bias_behind(node, readers, tensors)
        if bias is None:
            raise LoadError(f"{path}: no bias tells what the matrix `{matrix}` is")
        name = bias.removesuffix("bias") + "weight"
        named[name] = tensors[matrix]
        named.pop(matrix, None)
        if node.op == "MatMulInteger":
            named[name.removesuffix("weight") + "step"] = _step(path, matrix, tensors, named)
    return named


def _bias_behind(node: Node, readers: dict[str, list[Node]], tensors: Arrays) -> str | None:
    for _ in range(4):  # MatMulInteger, Cast, Mul, Add is the longest way
        following = readers.get(node.outputs[0], [])
        if len(following) != 1:
            return None
        node = following[0]
        if node.op == "Add":
            return next((name for name in node.inputs if name in tensors and name.endswith("bias")), None)
        if node.op not in ("Cast", "Mul"):
            return None
    return None


def _step(path: Path, matrix: str, tensors: Arrays, named: Arrays) -> NDArray[Any]:
    """Scale of an int8 matrix whose companions carry the usual suffixes; it must be symmetric."""
    stem = matrix.removesuffix("_quantized")
    scale, zero = tensors.get(f"{stem}_scale"), tensors.get(f"{stem}_zero_point")
    if scale is None or zero is None:
        raise LoadError(f"{path}: int8 matrix `{matrix}` has no `{stem}_scale` or no `{stem}_zero_point`")
    if scale.size != 1 or np.any(zero):
        raise LoadError(f"{path}: int8 matrix `{matrix}` is not quantised by one symmetric step")
    named.pop(f"{stem}_scale", None)
    named.pop(f"{stem}_zero_point", None)
    return scale.reshape(())
