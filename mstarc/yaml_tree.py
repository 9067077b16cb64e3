"""YAML text to a plain tree with the place of every key. Takes what a binding file may hold: no tags that run code, no aliases."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

DEEPEST = 40  # levels of collections
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """content: dicts, lists and scalars. places: first and past-last character of each key and list item, by path."""

    content: Any
    places: Mapping[Path, tuple[int, int]]


class NotTaken(Exception):
    """The text is no YAML, or not such YAML. `at`: the character where, if it is known."""

    def __init__(self, what: str, at: int | None = None) -> None:
        super().__init__(what)
        self.at = at


def read_tree(text: str) -> Tree:
    """The tree of a text. Raises NotTaken; its message follows `the binding file`."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        root = yaml.compose(io.StringIO(text))
        if root is None:
            return Tree(None, {})
        _check(root)
        return Tree(yaml.constructor.construct_document(root), dict(_places(root, ())))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = _first_line(error.problem or error.context).split(" with value")[0]
        raise NotTaken(f"is not YAML: {reason}", mark.index if mark else None) from None
    except RecursionError:
        raise NotTaken("is nested too deeply") from None
    except (YAMLError, ValueError) as error:
        raise NotTaken(f"is not YAML: {_first_line(str(error))}") from None
    except (
        LookupError,
        ArithmeticError,
    ) as error:  # `!!bool x`, `!!int ""`, "\\U99999999": what the library does not foresee
        raise NotTaken(f"is not YAML: a value has no meaning ({type(error).__name__}: {error})") from None


class _Composer(Composer):
    """Raises RecursionError where collections are nested deeper than DEEPEST."""

    _levels = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._levels += 1
        if self._levels > DEEPEST and self.parser.check_event(CollectionStartEvent):
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self._levels -= 1


def _check(root: Node) -> None:
    """Refuses aliases (they can stand for endless or for huge values), keys that are collections, and half surrogate pairs."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            raise NotTaken("uses an anchor twice: write the value out", node.start_mark.index)
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if not isinstance(key, ScalarNode):
                    raise NotTaken("has a key that is a list or a mapping", key.start_mark.index)
                todo += (key, value)
        elif isinstance(node, SequenceNode):
            todo += node.value
        elif any("\ud800" <= character <= "\udfff" for character in str(node.value)):
            raise NotTaken("holds text that is not valid Unicode", node.start_mark.index)


def _first_line(text: str | None) -> str:
    return (text or "no reason is given").strip().splitlines()[0]


def _places(node: Node, path: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, (key.start_mark.index, key.end_mark.index)
            yield from _places(value, here)
    elif isinstance(node, SequenceNode):
        for position, value in enumerate(node.value):
            here = (*path, str(position))
            yield here, (value.start_mark.index, value.end_mark.index)
            yield from _places(value, here)
