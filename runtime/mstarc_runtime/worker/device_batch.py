"""The `Batch` of a captured loop: the generated body runs on it for B rows at once, k times, without the host looking.

Rows that have left go on computing; nothing of theirs is seen, because everything visible is recorded together with the rows for
which it holds, and contexts, samplers and counters move for these rows only.

What the body does before its first op or draw in an iteration is its *head*: it stops, emits and sends what the last iteration made.
A run ends with the head of the iteration that comes next, so that this is seen one step earlier; the next run leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mstarc_runtime.abi.linked import OpLink
from mstarc_runtime.engines.slots import call_slots
from mstarc_runtime.program import ABSENT
from mstarc_runtime.sampling.philox_torch import normals
from mstarc_runtime.worker.device_state import FAILED, SPENT, STOPPED, LoopState, NotOnDevice
from mstarc_runtime.worker.handed import handed_count

if TYPE_CHECKING:
    from mstarc_runtime.worker.bound_ops import BoundOp
    from mstarc_runtime.worker.row_programs import RowPrograms


@dataclass(frozen=True, slots=True)
class Record:
    """One visible thing that an iteration does, the same in every iteration.

    emit, send, collect: `name` is the modality, stream or collection. draw: the sampler, at `site`. noise: `site`. write: an op that
    adds `entries` to `contexts` and moves their counters by `advance`. Values are [B, ...]; those of `draw` and `write` are ids, and
    a write without ids has none.
    """

    kind: Literal["emit", "send", "collect", "draw", "noise", "write"]
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    site: str = ""
    contexts: tuple[str, ...] = ()
    entries: int = 0
    advance: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What k iterations of B rows did, and, as a step of its own, the head of the next one if it records anything.

    A row's values of record r in step i count where valid[i, r, row]. ended i8 and iter i64 [B] as in `LoopState`; valid bool
    [k, records, B]; ids i64 [k, n, B]: values of the records `packed`, which are single integers; values by record [k, B, ...]: the
    others. Here k counts the head.
    """

    records: tuple[Record, ...]
    ended: Tensor
    iter: Tensor
    valid: Tensor
    packed: tuple[int, ...]
    ids: Tensor
    values: Mapping[int, Tensor]


class _EndOfHead(Exception):
    """What follows belongs to the next run."""


class _Params:
    def __init__(self, state: LoopState, rows: int) -> None:
        self._state, self._rows = state, rows

    def __getattr__(self, name: str) -> Tensor:
        return self._state.param(name)[: self._rows]


class _Host:
    def __init__(self, state: LoopState, rows: int) -> None:
        self._state, self._rows = state, rows

    def __getattr__(self, name: str) -> Tensor:
        raise NotOnDevice(f"`{name}` is a value of the host")

    def wants(self, modality: str) -> Tensor:
        return self._state.answer("wants", modality)[: self._rows]

    def given(self, modality: str) -> Tensor:
        return self._state.answer("given", modality)[: self._rows]


class _Numbers:
    """Params of the rows as f64, which holds what the host computes with."""

    def __init__(self, state: LoopState, rows: int) -> None:
        self._state, self._rows = state, rows

    def __getattr__(self, name: str) -> Tensor:
        return self._state.number(name)[: self._rows]


class _Row:
    """What arithmetic of the host asks about every row."""

    def __init__(self, iterations: Tensor, params: _Numbers, config: Any) -> None:
        self._iterations, self.params, self.config = iterations, params, config

    @property
    def iter(self) -> Tensor:
        """f64 [B]."""
        return self._iterations.double()


class DeviceBatch:
    """Implements `mstarc_runtime.program.Batch` for the first `rows` rows of a loop's state."""

    def __init__(self, state: LoopState, rows: int) -> None:
        self.state, self.rows = state, rows
        self.config = state.rank.config
        self.params = _Params(state, rows)
        self.host = _Host(state, rows)
        self._iter = state.iter[:rows]
        self._active, self._ended = state.active[:rows], state.ended[:rows]
        self._results = [value[:rows] for value in state.results]
        self._running = self._active
        self._records: list[Record] = []
        self._values: list[list[Tensor | None]] = []  # by iteration, by record
        self._valid: list[list[Tensor]] = []
        self._in_head = False
        self._head_only = False
        self._programs: RowPrograms | None = None

    @property
    def iter(self) -> Tensor:
        """Iterations that each row has finished, i64 [B]. A copy: the counter moves on under what the body computes."""
        return self._iter.clone()

    def at(self, table: Tensor, index: Any) -> Tensor:
        """See `Batch.at`. A row that has left reads the last one at most."""
        places = self._rowwise(index).clamp(max=table.shape[1] - 1)
        return table[torch.arange(self.rows, device=table.device), places]

    def number(self, of: Callable[[Any], Any]) -> Tensor:
        """Arithmetic of the host on every row, f32 [B]."""
        found: Tensor = of(_Row(self._iter, _Numbers(self.state, self.rows), self.config))
        return found.float()

    # ------------------------------------------------------------------------------------------------------- iterations

    def run(self, body: Callable[..., tuple[Tensor, ...]], times: int) -> Outcome:
        """Run the body so many times and move the state."""
        with _together(self.state.device, self.rows) as self._programs:
            return self._iterate(body, times)

    def _iterate(self, body: Callable[..., tuple[Tensor, ...]], times: int) -> Outcome:
        state, rows = self.state, self.rows
        carry = [value[:rows] for value in state.carry]
        fixed = [value[:rows] for value in state.fixed]
        for step in range(times):
            self._begin(state.until, in_head=step == 0)
            began = self._running
            following = body(self, *carry, *fixed)
            carry = [self._chosen(self._running, new, old) for new, old in zip(following, carry, strict=True)]
            self._iter.add_(self._running)
            if step == 0:  # a row that runs at all in this run does so in its first iteration
                state.ahead[:rows].logical_and_(~began)
        spent = self._active & (self._iter >= state.bound[:rows])  # none runs past its bound: `until`
        self._leave(spent, carry, SPENT)
        self._run_head(body, carry, fixed)
        outcome = self._outcome()  # holds copies: the first iteration may have recorded the carried values themselves
        for value, last in zip(state.carry, carry, strict=True):
            value[:rows].copy_(last)
        return outcome

    def _begin(self, until: Tensor, in_head: bool) -> None:
        """A step of the rows that are before the iteration `until`. in_head: some may have done the head already."""
        self._running = self._active & (self._iter < until[: self.rows])
        self._in_head = in_head
        self._values.append([])
        self._valid.append([])

    def _run_head(
        self, body: Callable[..., tuple[Tensor, ...]], carry: Sequence[Tensor], fixed: Sequence[Tensor]
    ) -> None:
        """The head of the next iteration, of the rows that may."""
        self._begin(self.state.heads, in_head=True)
        self._head_only = True
        with suppress(_EndOfHead):
            body(self, *carry, *fixed)
        self.state.ahead[: self.rows].logical_or_(self._running)
        values, valid = self._values[-1], self._valid[-1]
        if not values:
            self._values.pop()
            self._valid.pop()
        rest = self._values[0][len(values) :] if values else ()  # records of the rest of the body
        if rest:
            values.extend(rest)
            valid.extend([torch.zeros_like(self._running)] * len(rest))

    def _work(self) -> None:
        """The body comes to an op or a draw: the head is over."""
        if self._head_only:
            raise _EndOfHead
        self._in_head = False

    @property
    def _seen(self) -> Tensor:
        """The rows of which something is seen now, bool [B]."""
        return self._running & ~self.state.ahead[: self.rows] if self._in_head else self._running

    def _outcome(self) -> Outcome:
        first = self._values[0]
        packed = tuple(
            r for r, value in enumerate(first) if value is not None and value.dim() == 1 and value.dtype == torch.int64
        )
        ids = self._by_step([[step[r] for r in packed] for step in self._values], torch.int64)  # type: ignore[misc]
        valid = self._by_step(self._valid, torch.bool)
        rest = [r for r, value in enumerate(first) if value is not None and r not in packed]
        values = {r: torch.stack([step[r] for step in self._values]) for r in rest}  # type: ignore[misc]
        return Outcome(tuple(self._records), self._ended, self._iter, valid, packed, ids, values)

    def _by_step(self, columns: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Tensor:
        """Several [B] of each step as one [k, n, B]."""
        shape = len(columns), len(columns[0]) if columns else 0, self.rows
        flat = [column for step in columns for column in step]
        return torch.stack(flat).view(shape) if flat else torch.empty(shape, dtype=dtype, device=self.state.device)

    def _note(self, record: Record, value: Tensor | None, valid: Tensor) -> None:
        """Record what this iteration did in the rows `valid`."""
        step = self._values[-1]
        if len(self._values) == 1:
            self._records.append(record)
        step.append(None if value is None else self._rowwise(value))
        self._valid[-1].append(valid)

    def _rowwise(self, value: Any) -> Tensor:
        """A value with a row per request: what is one for all of them is repeated."""
        if not isinstance(value, Tensor):
            return torch.full((self.rows,), value, device=self.state.device)
        return value.expand(self.rows) if value.dim() == 0 else value

    @staticmethod
    def _chosen(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (old.dim() - 1)), new, old)

    def _leave(self, ending: Tensor, carried: Sequence[Any], why: int) -> None:
        """The rows `ending` leave with these values."""
        for result, value in zip(self._results, carried, strict=True):
            result.copy_(self._chosen(ending, self._rowwise(value), result))
        self._ended.masked_fill_(ending, why)
        self._active.logical_and_(~ending)

    # ------------------------------------------------------------------------------------------------------------ verbs

    def stop(self, flag: Any, carried: tuple[Any, ...], live: tuple[Any, ...], why: str = "stop") -> tuple[Any, ...]:
        """See `Batch.stop`. Returns `live` as it is: rows that left compute along."""
        ending = self._running & self._rowwise(flag)
        self._leave(ending, carried, STOPPED if why == "stop" else SPENT)
        self._running = self._running & ~ending
        return live

    def call(
        self,
        op: str,
        *args: Any,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any:
        """See `Batch.call`. Raises NotOnDevice for an op without a fixed shape."""
        self._work()
        if not self.state.rank.ops.has(op):
            raise NotOnDevice(f"op `{op}` is on another rank")
        bound = self.state.rank.ops.bound(op)
        link = bound.link
        args = tuple(None if arg is ABSENT else self._rowwise(arg) for arg in args)
        if handed_count(bound.node, link) or bound.arrays != "torch":
            raise NotOnDevice(f"op `{op}` draws, keeps cells, or computes on the host")
        if bound.node.kind == "transformer":
            values: Any = self._transform(bound, args, writes, reads)
        elif link.batch == "stack":
            values = self._method(bound)(*args)
        else:
            raise NotOnDevice(f"op `{op}` is called request by request")
        if only is None or link.results <= 1:
            return values
        return values[only[0]] if len(only) == 1 else tuple(values[k] for k in only)

    def _method(self, bound: BoundOp) -> Callable[..., Any]:
        return bound.method if self._programs is None else self._programs.outside(bound.method)

    def arm(self, op: str, *args: Any, **named: Any) -> Callable[[], Any]:
        """See `Batch.arm`."""
        return partial(self.call, op, *args, **named)

    def parallel(self, *arms: Callable[[], Any]) -> tuple[Any, ...]:
        """See `Batch.parallel`. One after the other: the host is not between them."""
        return tuple(arm() for arm in arms)

    def guide(self, v: Tensor, *branches: Any, settings: Callable[[Any], tuple[Any, ...]]) -> Any:
        """See `Batch.guide`. Raises NotOnDevice: what it mixes differs from request to request."""
        raise NotOnDevice("`guide` goes request by request")

    def _transform(self, bound: BoundOp, args: Sequence[Any], writes: tuple[str, ...], reads: tuple[str, ...]) -> Any:
        state, link = self.state, bound.link
        transformers = state.rank.ops.transformers
        takes = constant_takes(link)
        moves = link.advance is None or isinstance(link.advance, int)
        if takes is None or link.positions == "at" or not moves or not set(link.params) <= {"scalar", "plain"}:
            raise NotOnDevice(f"op `{bound.name}` has no fixed shape")
        names = reads[:1] if link.frozen else writes or transformers.contexts_of(bound.node.cache)
        cross = state.context(reads[0]).first(self.rows) if link.cross else None
        targets = [state.context(name).first(self.rows) for name in names]
        columns = call_slots(
            self._method(bound),
            transformers.spec(bound),
            targets,
            args,
            self._running,
            takes=takes,
            advance=link.advance,
            cross=cross,
        )
        if not link.frozen:
            ids = _token_ids(link, args) if takes == 1 else None
            moved = (0 if link.positions == "same" else takes) if link.advance is None else link.advance
            written = Record("write", bound.name, contexts=tuple(names), entries=takes, advance=moved)
            self._note(written, ids, self._running)
            for sampler, rows in state.samplers.items():
                if state.over(sampler) in names and ids is not None:
                    rows.first(self.rows).note(ids, self._running)
        return columns[0] if len(columns) == 1 else columns or None

    def sample(self, sampler: str, logits: Tensor, site: str) -> Tensor:
        """See `Batch.sample`. Rows without a usable logit fail."""
        self._work()
        rows = self.state.sampler(sampler, logits.shape[1]).first(self.rows)
        number = self.state.site(site).number(self.state.seed[: self.rows], self.rows, self._running)
        ids, usable = rows.draw(logits, number, self._running)
        bad = self._running & ~usable
        self._ended.masked_fill_(bad, FAILED)
        self._active.logical_and_(~bad)
        self._running = self._running & usable
        self._note(Record("draw", sampler, site=site), ids, self._running)
        return ids

    def noise(self, dtype: str, dims: tuple[int, ...], site: str) -> Tensor:
        """See `Batch.noise`."""
        self._work()
        drawn = self.state.site(site)
        values = normals(dims, self.state.seed[: self.rows], drawn.hashed, drawn.j[: self.rows])
        drawn.j[: self.rows].add_(self._running)
        self._note(Record("noise", "", site=site), None, self._running)
        found: Tensor = self.state.rank.arrays.cast(values, dtype)
        return found

    def emit(self, modality: str, value: Any, **attributes: Any) -> None:
        """See `Batch.emit`."""
        self._note(Record("emit", modality, attributes), value, self._seen)

    def send(self, stream: str, item: Any) -> None:
        """See `Batch.send`. The stream's `where` is a flag of the record."""
        rank, valid = self.state.rank, self._seen
        item = self._rowwise(item)
        where = rank.where_of(stream)
        if where is not None:
            valid = valid & self._rowwise(where(self, item))
        self._note(Record("send", stream), item, valid)

    def collect(self, name: str, value: Any) -> None:
        """See `Batch.collect`."""
        self._note(Record("collect", name), value, self._seen)


def _together(device: torch.device, rows: int) -> AbstractContextManager[RowPrograms | None]:
    """Inside, arithmetic on a number per row costs one kernel, not one an operation, where kernels can be written."""
    if device.type != "cuda":
        return nullcontext()
    from mstarc_runtime.worker.row_programs import RowPrograms  # triton is there where CUDA is

    return RowPrograms(device, rows)


def constant_takes(link: OpLink) -> int | None:
    """How many entries a call of the op adds, if that is a constant (see `OpLink.takes`)."""
    if not isinstance(link.takes, str):
        return None
    if link.takes.startswith("const:"):
        return int(link.takes.removeprefix("const:"))
    tokens = [kind for kind in link.params if kind in ("scalar", "packed")]
    return 1 if not link.takes and tokens[:1] == ["scalar"] else None


def _token_ids(link: OpLink, args: Sequence[Tensor]) -> Tensor | None:
    """The ids behind the entries, as `TransformerEngine` takes them: the one integer `scalar` argument."""
    found = [
        arg
        for kind, arg in zip(link.params, args, strict=True)
        if kind == "scalar" and arg is not None and arg.dtype in (torch.int32, torch.int64)
    ]
    return found[0].long() if len(found) == 1 else None
