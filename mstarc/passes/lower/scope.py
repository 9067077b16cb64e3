"""Names that hold values inside one walk or request, and the SSA values they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstarc.ir.core import Value
from mstarc.ir.types import Phase, Scalar, Type, ValueId
from mstarc.passes.lower.dims import Dims
from mstarc.source import NOWHERE, Span

UNKNOWN = Scalar("int")  # the type of a host value whose type the model does not say: a config value of the checkpoint


@dataclass(frozen=True, slots=True)
class Binding:
    """What a name stands for now. `depth`: how many loop bodies are around the binding."""

    value: Value
    depth: int


@dataclass
class Values:
    """Makes the values of one walk or request, with provisional ids in order of creation.

    `types`: what is known about each (None = nothing); it may be learnt after the value was made. `unnamed`: values that the
    author gave no name.
    """

    types: dict[int, Type | None] = field(default_factory=dict)
    unnamed: set[int] = field(default_factory=set)

    def make(self, name: str, kind: Type | None, phase: Phase, span: Span = NOWHERE, named: bool = True) -> Value:
        """A new value; its name is made unique when the unit is finished."""
        made = Value(ValueId(len(self.types)), name, UNKNOWN, phase, span=span)
        self.types[made.id] = kind
        if not named:
            self.unnamed.add(made.id)
        return made

    def type_of(self, value: Value) -> Type | None:
        return self.types[value.id]

    def final_type(self, value: Value, dims: Dims) -> Type:
        """The type that the IR gets."""
        kind = self.types[value.id]
        return UNKNOWN if kind is None else dims.finished(kind)


@dataclass
class Names:
    """Bindings that are visible, in nested scopes. A scope that ends takes its names with it, but remembers that they were."""

    frames: list[dict[str, Binding]] = field(default_factory=lambda: [{}])
    gone: dict[str, str] = field(default_factory=dict)  # name -> what bound it and has ended: `loop dream`, `case text`

    def find(self, name: str) -> Binding | None:
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return None

    def bind(self, name: str, binding: Binding) -> None:
        self.frames[-1][name] = binding
        self.gone.pop(name, None)

    def push(self) -> None:
        self.frames.append({})

    def pop(self, what: str) -> dict[str, Binding]:
        """End a scope; `what` says how messages call it."""
        frame = self.frames.pop()
        for name in frame:
            if self.find(name) is None:
                self.gone[name] = what
        return frame

    def visible(self) -> list[str]:
        return [name for frame in self.frames for name in frame]
