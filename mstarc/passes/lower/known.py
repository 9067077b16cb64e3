"""Numbers of configs that the model leaves to its binding or a checkpoint: with them dims are compared that stay names otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mstarc.ir.fold import FoldError, fold
from mstarc.ir.types import Expr, Ref, ValueId
from mstarc.ir.visit import every_expr


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a config path, and what gives it: a binding file or a checkpoint."""

    value: Any
    by: str


@dataclass
class Known:
    """A scope of `fold` in which configs and lets have numbers. `given` by path, `paths` by the name of a config.

    meaning: what a config or let stands for, if the model says.
    """

    meaning: Callable[[Ref], Expr | None]
    given: Mapping[str, Given] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)

    def conflict(self, a: Expr, b: Expr) -> str:
        """How two dims differ by these numbers, as `d` is 64 by captioner.yaml, 65 here; "" if they do not or it is not known."""
        if not self.given:
            return ""
        try:
            left, right = fold(a, self), fold(b, self)
        except FoldError:
            return ""
        if left == right:
            return ""
        sides = ((a, left, self._sources(a)), (b, right, self._sources(b)))
        return ", ".join(_side(*side) for side in sorted(sides, key=lambda side: not side[2]))

    def _sources(self, expr: Expr) -> tuple[str, ...]:
        """What gives the numbers of an expression, each once, in order."""
        found: dict[str, None] = {}
        for leaf in every_expr(expr):
            if isinstance(leaf, Ref):
                meaning = self.meaning(leaf)
                path = self.paths.get(leaf.name, "") if leaf.scope == "config" else ""
                found |= dict.fromkeys(self._sources(meaning) if meaning is not None else ())
                found |= {self.given[path].by: None} if path in self.given else {}
        return tuple(found)

    def ref(self, ref: Ref) -> Any:
        meaning = self.meaning(ref) if ref.scope in ("config", "let") else None
        if meaning is not None:
            return fold(meaning, self)
        path = self.paths.get(ref.name, "") if ref.scope == "config" else ""
        if path not in self.given:
            raise FoldError(f"the {ref.scope} `{ref.name}` has no number")
        return self.given[path].value

    def var(self, ident: ValueId) -> Any:
        raise FoldError(f"%{ident} has no number")

    def field(self, ident: ValueId, name: str) -> Any:
        raise FoldError(f"%{ident}.{name} has no number")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        raise FoldError(f"`{fn}` has no number")


def _side(expr: Expr, value: Any, sources: tuple[str, ...]) -> str:
    from mstarc.passes.lower.typed import dim_text

    return f"`{dim_text(expr)}` is {value} by {' and '.join(sources)}" if sources else f"{value} here"
