"""Which statement of a block binds which name, and which reads it: for uses that come before their binding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from mstarc.source import Span
from mstarc.syntax import ast


@dataclass(slots=True)
class Place:
    """A block whose statement number `at` is being lowered."""

    stmts: Sequence[ast.Stmt]
    parallel: bool
    at: int = 0

    def binds_later(self, name: str) -> ast.Stmt | None:
        """The statement, this one or a later one, that binds the name."""
        return next((stmt for stmt in self.stmts[self.at :] if name in bound_names(stmt)), None)

    def in_circle(self, binder: ast.Stmt) -> bool:
        """Whether the statement that binds a name needs, by way of others of the block, what this one binds."""
        here = self.stmts[self.at]
        open_: list[ast.Stmt] = [binder]
        seen: list[ast.Stmt] = []
        while open_:
            stmt = open_.pop()
            if any(stmt is other for other in seen):
                continue
            seen.append(stmt)
            read = set(read_names(stmt))
            open_ += [other for other in self.stmts if read & set(bound_names(other))]
        return any(stmt is here for stmt in seen)


def bound_names(stmt: ast.Stmt) -> list[str]:
    """Names that a statement binds in the block that it stands in."""
    match stmt:
        case ast.Assign(targets):
            return [name.text for name in targets if name.text != "_"]
        case ast.Guarded(inner):
            return bound_names(inner)
        case ast.Loop(carries=carries, body=body):
            return [carry.name.text for carry in carries] + list(_collected(body))
        case ast.Parallel(body):
            return [name for inner in body.stmts for name in bound_names(inner)]
        case _:
            return []


def _collected(body: ast.Block) -> Iterator[str]:
    for stmt in body.stmts:
        inner = stmt.stmt if isinstance(stmt, ast.Guarded) else stmt
        if isinstance(inner, ast.Collect):
            yield inner.name.text
        elif isinstance(inner, ast.For | ast.Parallel) and inner.body is not None:
            yield from _collected(inner.body)


def binders(tree: Any) -> Iterator[ast.Name]:
    """Every name that a walk or request gives a value: its inputs, and what its statements bind at any depth."""
    match tree:
        case ast.Assign(targets):
            yield from targets
        case ast.PortDef(name) | ast.Carry(name) | ast.Collect(_, name):
            yield name
        case ast.For(names):
            yield from names
    for part in _parts(tree):
        yield from binders(part)


def read_names(tree: Any) -> Iterator[str]:
    """Heads of all paths below a statement; callees are among them, which does no harm."""
    yield from (name.text for name in heads(tree))


def heads(tree: Any) -> Iterator[ast.Name]:
    """The first names of all paths."""
    if isinstance(tree, ast.Path):
        yield tree.names[0]
    for part in _parts(tree):
        yield from heads(part)


def _parts(tree: Any) -> Iterator[Any]:
    if isinstance(tree, tuple):
        yield from tree
    elif isinstance(tree, Struct) and not isinstance(tree, (ast.Name, ast.Path, Span)):
        yield from (getattr(tree, name) for name in tree.__struct_fields__)
