"""Names that hold values inside one walk or request, and the SSA values they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstarc.ir.core import Value
from mstarc.ir.types import Phase, Scalar, Type, ValueId
from mstarc.source import NOWHERE, Span

UNKNOWN_TYPE = Scalar("int")  # stands for the type of a value that an error left without one


@dataclass(slots=True)
class Binding:
    """What a name stands for now. `stale`: where it can no longer be used, and why (`loop` body, `when`, ...)."""

    value: Value
    type: Type | None
    depth: int  # how many loop bodies are around the binding
    used: bool = False


@dataclass
class Values:
    """Makes the values of one walk or request: provisional ids in order of creation, unique pretty names."""

    _count: int = 0
    _names: dict[str, int] = field(default_factory=dict)

    def make(self, name: str, kind: Type | None, phase: Phase, span: Span = NOWHERE) -> Value:
        seen = self._names.get(name, 0) + 1
        self._names[name] = seen
        pretty = name if seen == 1 else f"{name}_{seen}"
        while pretty != name and pretty in self._names:
            seen += 1
            pretty = f"{name}_{seen}"
        self._names.setdefault(pretty, 1)
        self._names[name] = max(seen, self._names[name])
        made = Value(ValueId(self._count), pretty, kind if kind is not None else UNKNOWN_TYPE, phase, span=span)
        self._count += 1
        return made


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
        frame = self.frames.pop()
        for name in frame:
            if self.find(name) is None:
                self.gone[name] = what
        return frame
