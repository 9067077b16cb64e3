"""Random IR objects, derived from the annotations of the dataclasses: any shape that the text form can hold.

The programs are not well-formed (values may be undefined); they test the text form only. Hypothesis draws a seed and a size: drawing
each of some hundred fields through Hypothesis takes seconds a program.
"""

from __future__ import annotations

import random
import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from mstarc.ir import core, declarations
from mstarc.ir import types as ir_types
from mstarc.ir.text.expressions import STRENGTH

NAMES = ["x", "token", "loop", "when", "if_", "end", "K2", "host", "in", "to", "not_", "carry", "media", "_y"]
TEXTS = ["", "a b", '"', "\\", "a\nb", "#", "\u2028", "é%3", "llm.vocab_size"]
LITERALS = [True, False, 0, 1, -1, 10**18, 0.0, -0.0, 1.5, -1.5, 1e16, 1e-7, float("inf"), -float("inf"), *TEXTS]

#: fields whose annotation is wider than what they may hold
CHOICES: dict[tuple[str, str], list[Any]] = {
    ("Binary", "op"): sorted(STRENGTH),
    ("Apply", "fn"): ["given", "last", "linspace", "min"],
    ("Tensor", "dtype"): list(ir_types.DTYPES),
    ("Scalar", "name"): list(ir_types.SCALARS),
    ("Lit", "value"): LITERALS,
    ("Config", "path"): TEXTS,
    ("Sample", "site"): TEXTS,
    ("Noise", "site"): TEXTS,
    ("Require", "text"): TEXTS,
    ("Stream", "at_end"): ["", "drop", "partial", "pad:zero", "pad:repeat"],
    ("Sampler", "over"): ["", *NAMES],
    ("OpAttrs", "samples"): ["", *NAMES],
    ("OpAttrs", "graph"): ["", *NAMES],
    ("Node", "cache"): ["", *NAMES],
    ("Node", "precision"): ["", *NAMES],
    ("Node", "weights"): ["", *NAMES],
    ("Case", "kind"): ["", *NAMES],
}
NEVER_EMPTY = {("Next", "streams"), ("ForChunks", "streams"), ("ForChunks", "items"), ("Drop", "contexts")}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(core) | vars(declarations) | vars(ir_types))


class Builder:
    """Draws objects bottom-up; below `depth` levels, expressions are leaves and blocks are empty."""

    def __init__(self, seed: int, depth: int) -> None:
        self.random = random.Random(seed)
        self.depth = depth

    def build(self, annotation: Any, least: int = 0) -> Any:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation is bool:
            return self.random.random() < 0.5
        if annotation is str:
            return self.random.choice(NAMES)
        if annotation is ir_types.ValueId:
            return self.random.randrange(100)
        if origin is typing.Literal:
            return self.random.choice(args)
        if origin in (typing.Union, types.UnionType):
            return self._one_of(args)
        if origin is tuple and args[-1] is not Ellipsis:
            return tuple(self.build(a) for a in args)
        if origin is tuple:
            return tuple(self.build(args[0]) for _ in range(self.random.randint(least, 2 if self.depth > 0 else least)))
        return None if annotation is type(None) else self.dataclass(annotation)

    def _one_of(self, args: tuple[Any, ...]) -> Any:
        leaves = [a for a in args if a in (ir_types.Lit, ir_types.Ref, ir_types.Var, type(None), ir_types.Scalar)]
        return self.build(self.random.choice(leaves if leaves and self.depth <= 0 else args))

    def dataclass(self, kind: Any) -> Any:
        assert is_dataclass(kind), kind
        self.depth -= 1
        made = {}
        for field in fields(kind):
            key = (kind.__name__, field.name)
            if field.name == "span":
                continue
            if key in CHOICES:
                made[field.name] = self.random.choice(CHOICES[key])
            elif key == ("Block", "ops") and self.depth <= 0:
                made[field.name] = ()
            else:
                made[field.name] = self.build(_hints(kind)[field.name], key in NEVER_EMPTY)
        self.depth += 1
        return kind(**made)


def anything(annotation: Any, depth: int) -> st.SearchStrategy[Any]:
    """Random objects of an annotation of the IR, nested up to `depth` levels."""
    return st.integers(0, 2**40).map(lambda seed: Builder(seed, depth).build(annotation))


EXPRESSIONS = anything(ir_types.Expr, 4)
PROGRAMS = anything(core.Program, 7)
