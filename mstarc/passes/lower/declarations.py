"""Declarations to IR: configs, params, lets, types, externs, caches, contexts, samplers, nodes and streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir import core
from mstarc.ir.types import Enum, Expr, Lit, Range, Ref, Scalar, Tensor, Type
from mstarc.passes.lower.dims import Dims
from mstarc.passes.lower.expressions import path_text
from mstarc.passes.lower.ops import NodeReader
from mstarc.passes.lower.order import read_names
from mstarc.passes.lower.symbols import Symbols
from mstarc.passes.lower.typed import INT, Typed, number_of, type_text
from mstarc.passes.lower.values import fits_default
from mstarc.passes.lower.written import WrittenTypes
from mstarc.source import Span
from mstarc.syntax import ast

D = TypeVar("D")
SETTINGS = ("temperature", "top_k", "top_p", "repetition_penalty", "min_tokens", "suppress")
