"""Host expressions: precision, tables, built-ins, and errors that name the thing."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from mstarc.ir import fold as folding
from mstarc.ir.fold import ABSENT, FoldError, flat_ids, fold
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.text.read_expressions import read_expr
from mstarc.ir.types import Expr, Ref
from mstarc_runtime.abi.host_math import F32, linspace, shift


class Names:
    """A scope of plain names."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def ref(self, ref: Ref) -> Any:
        return self.values[ref.name]

    def var(self, ident: int) -> Any:
        return self.values[f"v{ident}"]

    def field(self, ident: int, name: str) -> Any:
        return self.values[f"v{ident}"][name]

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        raise FoldError(f"no {fn}")


def value(text: str, **names: Any) -> Any:
    return fold(read_expr(Cursor(text)), Names(**names))


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("7 // 2 + 7 % 2", 4),
        ("-7 // 2", -4),
        ("7 / 2", 3.5),
        ("1 - 2 - 3", -4),
        ("not true or 1 < 2 and 2 < 1", False),
        ("false and 1 // 0 == 1", False),
        ("if 1 == 1.0 then 2 else 3 // 0", 2),
        ("[1, 2, 3][1]", 2),
        ("[1, 2, 3][1:]", [2, 3]),
        ("[[1, 2], [3, 4]][1, 0]", 3),
        ("min(3, 1, 2) + max(3, 1, 2)", 4),
        ("len([1, 2])", 2),
        ("present(%0)", False),
        ("member.global", "global"),
        ("3..6 except [4, 5]", [3, 6]),
    ],
)
def test_values(text: str, due: Any) -> None:
    assert value(text, v0=ABSENT) == due


def test_table_elements_are_single_precision_and_compare_in_it() -> None:
    times = value("linspace(1, 0, 11)")
    assert all(float(t) == float(np.float32(t)) for t in times)
    assert float(times[9]) != 0.1
    assert value("param.above < linspace(1, 0, 11)[9]", above=0.1) is False  # equal in f32
    assert value("linspace(1, 0, 11)[9] <= param.upto", upto=0.1) is True
    step = value("linspace(1, 0, 11)[0] - linspace(1, 0, 11)[1]")
    assert isinstance(step, F32)
    assert float(step) == float(np.float32(1) - np.float32(times[1]))


def test_tables_equal_torch() -> None:
    torch = pytest.importorskip("torch")
    for count in (2, 3, 10, 50, 51, 200):
        times = torch.linspace(1, 0, count)
        assert [float(t) for t in linspace(1, 0, count)] == times.tolist()
        assert [float(t) for t in shift(times.tolist(), 3.0)] == (3.0 * times / (1 + (3.0 - 1) * times)).tolist()


def test_a_table_element_does_not_widen_an_array() -> None:
    half = np.ones(2, dtype=np.float32)
    found = value("%0 * linspace(1, 0, 11)[9] - (0.5 + linspace(1, 0, 3)[1]) * %0", v0=half)
    assert found.dtype == np.float32


def test_device_logic_is_elementwise() -> None:
    a, b = np.array([True, False]), np.array([True, True])
    assert value("%0 and not %1 or %0", v0=a, v1=b).tolist() == [True, False]
    assert value("%0 and not param.off", v0=a, off=False).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 // param.zero", "divides by zero"),
        ("[1][3]", "index 3"),
        ('"a" - 1', "does not apply"),
        ("%0 + 1", "an absent value"),
        ("linspace(0, 1, 0)", "at least one"),
        ("param.zero.kind", "no field `kind`"),
    ],
)
def test_errors_name_the_thing(text: str, says: str) -> None:
    with pytest.raises(FoldError, match=says):
        value(text, zero=0, v0=ABSENT)


def test_ids_are_flattened() -> None:
    assert flat_ids(value("[1, 3..4, [7]]")) == [1, 3, 4, 7]
    assert flat_ids(np.array([1, 2])) == [1, 2]
    assert flat_ids(5) == [5]


def test_single_precision_overflows_to_infinity() -> None:
    assert F32(1e300) == math.inf
    assert -F32(1e300) == -math.inf


def test_every_kind_of_expression_has_a_value() -> None:
    assert set(folding._FOLDS) == set(get_args(Expr))
