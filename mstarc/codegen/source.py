"""Small pieces of Python source that all views use: a writer of statements, methods as the templates print them, types as text."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.layout import INDENT, Call, Group, Part, lay_out
from mstarc.codegen.names import attribute, safe
from mstarc.ir.core import Value
from mstarc.ir.text import print_type
from mstarc.ir.types import Chunk, Struct, Tensor, Type, ValueId
from mstarc.source import Span


@dataclass
class Writer:
    """Collects the statements of one method body, laid out."""

    depth: int = 2
    lines: list[str] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """One statement."""
        self.lines += lay_out(part, self.depth)

    def open(self, header: str) -> None:
        """A compound statement: what follows is its block until `close`."""
        self.lines += lay_out(header, self.depth)
        self.depth += 1

    def close(self) -> None:
        """End of a block; an empty one gets `pass`."""
        if self.lines[-1].endswith(":") and self.lines[-1].startswith(INDENT * (self.depth - 1)):
            self.add("pass")
        self.depth -= 1


#: attributes of the generated classes that are no methods
_TABLES = frozenset(
    {"MODEL", "SENDS", "COLLECTS", "RAGGED", "PARAMS", "ENTRIES", "ARMS", "SWITCHED", "LETS", "RESULTS"}
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method as templates print it: lines with their indentation."""

    name: str
    head: tuple[str, ...]
    doc: str
    body: tuple[str, ...]


def method(name: str, params: Iterable[str], result: str, doc: str, body: Iterable[str]) -> Method:
    """`def name(self, params) -> result` in a class."""
    head = lay_out(Call(f"def {name}", ("self", *params), f" -> {result}:"), 1)
    return Method(name, tuple(head), doc, tuple(body))


def check_names(methods: Iterable[Method], span: Span) -> None:
    """Raises NotBuilt for a method that Python cannot name so, or two of one name: a loop's and a walk's, an arm's and a request's."""
    found: dict[str, Method] = {}
    for one in methods:
        if keyword.iskeyword(one.name) or one.name.startswith("__") or one.name in _TABLES:
            raise NotBuilt(f"{one.doc.split('(')[0]}, a name that Python code cannot have: choose another", span)
        other = found.setdefault(one.name, one)
        if other is not one:
            both = " and ".join(m.doc.split("(")[0] for m in (other, one))
            raise NotBuilt(f"{both} in one model: both become `{one.name}` in Python, so rename one", span)


def bind(targets: Iterable[str | None], value: Part, several: bool) -> Part:
    """`a, _ = value`, `(a,) = value` or `a = value`; the value alone if nothing is bound. `several`: the value is a tuple."""
    names = ["_" if target is None else target for target in targets]
    if not any(name != "_" for name in names):
        return value
    left = names[0] if not several else f"({names[0]},)" if len(names) == 1 else ", ".join(names)
    return prefixed(f"{left} = ", value)


def prefixed(prefix: str, part: Part) -> Part:
    """The part with text in front."""
    if isinstance(part, str):
        return prefix + part
    if isinstance(part, Call):
        return Call(prefix + part.head, part.items, part.tail, part.many)
    assert isinstance(part, Group), "a choice is an item of a call, never a statement"
    return Group(part.items, prefix + part.head, part.brackets, part.tail)


def tuple_of(items: Iterable[str], head: str = "") -> Group:
    """`head(a, b)`, `head(a,)` or `head()`."""
    return Group(tuple(items), head)


def show_type(kind: Type) -> str:
    """A type as the spec writes it."""
    shown = print_type(kind).replace("[]", "")
    shown = re.sub(r"struct (\w+)\(.*\)", r"\1", shown)
    return re.sub(r"\b(?:dim|config|param|let)\.", "", shown)


def show_params(params: Iterable[Value]) -> str:
    return ", ".join(f"{value.name}: {show_type(value.type)}" for value in params)


def local_names(values: Iterable[Value]) -> dict[ValueId, str]:
    """Names within one region: those of the spec, numbered where a name is bound again."""
    names: dict[ValueId, str] = {}
    used: set[str] = set()
    for value in values:
        base = re.sub(r"_\d+$", "", value.name) or value.name
        name, number = safe(base), 2
        while name in used:
            name, number = f"{base}_{number}", number + 1
        names[value.id] = name
        used.add(name)
    return names


def dims_in(kind: Type, text: str) -> Mapping[str, str]:
    """Free dims that a value of the type names, as text on the value: `len(x)`, `x.shape[1]`."""
    from mstarc.ir.types import Ref

    if isinstance(kind, Struct):
        found: dict[str, str] = {}
        for name, inner in kind.fields:
            found = {**dims_in(inner, attribute(text, name)), **found}
        return found
    if isinstance(kind, Chunk):
        return {}
    if not isinstance(kind, Tensor) or kind.optional:
        return {}
    free = [(axis, dim.name) for axis, dim in enumerate(kind.dims) if isinstance(dim, Ref) and dim.scope == "dim"]
    return {name: f"len({text})" if axis == 0 else f"{text}.shape[{axis}]" for axis, name in reversed(free)}


def class_name(model: str) -> str:
    """`qwen3_omni` -> `Qwen3Omni`."""
    return "".join(part[:1].upper() + part[1:] for part in model.split("_") if part) or "Model"


def imports_in(lines: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of the names that the lines mention, sorted."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    return sorted((name for name in names if name in words), key=lambda name: (not name.isupper(), name))
