"""What the interpreter asks of the machine that computes: ops, draws, host Python and a few array verbs.

The interpreter keeps what the language fixes (order, lengths, positions, histories, chunks); a machine keeps what values and the
entries of a context are. A *store* holds the entries of one context; only the machine looks into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mstarc.ir.declarations import OpDecl
from mstarc.ir.types import Type


@dataclass(frozen=True, slots=True)
class DrawKey:
    """Names one execution of a drawing site: the key of its counter-based generator."""

    seed: int
    walk: str
    site: str
    index: int


@dataclass(frozen=True, slots=True)
class SamplerState:
    """A sampler at one draw: its settings as numbers (`suppress` lists as ids), own earlier draws, and the ids that `over` holds."""

    name: str
    settings: Mapping[str, Any]
    own: Sequence[int]
    over: Sequence[int]


@dataclass(frozen=True, slots=True)
class OpRun:
    """One run of an op on (at most) one context.

    args are in parameter order, None where an optional one is absent. A transformer op sees `store`, which holds `length` entries, and
    its own `takes` entries at `positions` ([takes], or [3][takes]); unless `frozen` it appends them. `cross` is the store it attends
    besides. `shapes` are the results' shapes, None where a dim follows from the values only. `key` is that of a `random` op. `draw` draws
    from logits [vocab] with the sampler of `samples`, whose state at the beginning is `sampler`. `cells` are the node's, to be read and
    replaced.
    """

    node: str
    decl: OpDecl
    args: tuple[Any, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    store: Any = None
    length: int = 0
    takes: int = 0
    positions: Any = ()
    cross: Any = None
    key: DrawKey | None = None
    sampler: SamplerState | None = None
    draw: Callable[[Any], Any] | None = None
    cells: dict[str, Any] = field(default_factory=dict)

    @property
    def frozen(self) -> bool:
        return self.decl.attrs.frozen


class Machine(Protocol):
    """Computes. Values may be anything on which Python's operators work elementwise."""

    def config(self, path: str) -> Any:
        """The value of a config path such as `llm.vocab_size`. Raises KeyError."""
        ...

    def cell(self, kind: Type, dims: tuple[int, ...], init: Any) -> Any:
        """A node's cell at the start of a request."""
        ...

    def empty(self, context: str, cache: str) -> Any:
        """A store without entries."""
        ...

    def copy(self, store: Any) -> Any:
        """A store with the same entries, independent from now on."""
        ...

    def invoke(self, run: OpRun) -> tuple[Any, ...]:
        """The op's results, one per declared result."""
        ...

    def sample(self, logits: Any, sampler: SamplerState, key: DrawKey) -> Any:
        """One id drawn from logits [vocab]."""
        ...

    def noise(self, dtype: str, shape: tuple[int, ...], key: DrawKey) -> Any: ...

    def extern(self, name: str, args: tuple[Any, ...], results: int) -> tuple[Any, ...]:
        """Host Python; args are host values."""
        ...

    def host(self, value: Any) -> Any:
        """A value as the host sees it."""
        ...

    def truth(self, value: Any) -> bool:
        """A device bool as a Python bool."""
        ...

    def shape(self, value: Any) -> tuple[int, ...]: ...

    def stack(self, items: Sequence[Any]) -> Any:
        """Items of equal shape on a new dim 0."""
        ...

    def cat(self, items: Sequence[Any]) -> Any:
        """Items along dim 0, a scalar counting as [1]; an empty list is empty."""
        ...

    def last(self, value: Any, count: int) -> Any:
        """The last `count` along dim 0, or all if there are fewer."""
        ...

    def zero(self, value: Any) -> Any:
        """Zeros of the value's shape (the filler of `pad(zero)`)."""
        ...

    def guide(self, args: tuple[Any, ...]) -> Any:
        """Classifier-free guidance: (v, a, scale, ...) or (v, a, b, scale_a, scale_b, ...), then renorm and its least; b may be None."""
        ...
