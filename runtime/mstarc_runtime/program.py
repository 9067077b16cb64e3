"""The verbs of generated code: what `generated/<model>/worker.py` and `conductor.py` are written in.

Worker side. A walk is a coroutine of `WorkerProgram`; `walk` is its `Walk`. Verbs that may wait are yielded, the others are plain
calls. A dynamic or static loop whose body is straight-line becomes a *region*: a method on a `Batch` of requests that the runtime
runs for many requests at once (`walk.loop`). Every other loop is Python control flow in the coroutine.

Conductor side. A request program is a coroutine of `ConductorProgram`; `request` is its `RequestRun`.

The classes here hold no behaviour of an engine: `worker.walks` and `conductor.requests` subclass or implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from mstarc_runtime.abi.host_math import linspace as linspace
from mstarc_runtime.abi.host_math import shift as shift
from mstarc_runtime.abi.levels import Levels

Array: TypeAlias = Any  # torch tensor or numpy array; in a Batch, dim 0 is the row of a request
Steps: TypeAlias = Generator[Any, Any, tuple[Any, ...]]  # a walk: yields waits, returns the walk's results


class Absent:
    """The value of an optional that was not bound, and of `next` after the end. Falsy; there is one, `ABSENT`."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


class Part:
    """One element of a `list(a | b)`: its kind, and its fields by attribute. Externs return these."""

    def __init__(self, kind: str, /, **fields: Any) -> None:
        self.__dict__.update(fields)
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a part of kind `{self.__dict__.get('kind', '?')}` has no field `{name}`")

    def __repr__(self) -> str:
        return f"Part({self.kind!r}, {', '.join(sorted(vars(self).keys() - {'kind'}))})"


def plain(value: Any) -> Any:
    """A value as messages carry it: a Part becomes a dict that names its kind, Levels one that holds them."""
    if isinstance(value, Part):
        return {"part": value.kind, **{name: plain(item) for name, item in vars(value).items() if name != "kind"}}
    if isinstance(value, Levels):
        return {"levels": value.levels, "scale": value.scale, "offset": value.offset}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def rich(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, dict) and "part" in value:
        return Part(value["part"], **{name: rich(item) for name, item in value.items() if name != "part"})
    if isinstance(value, dict) and "levels" in value:
        return Levels(**value)
    return [rich(item) for item in value] if isinstance(value, list) else value


class ChunkView(Protocol):
    """What a stream consumer sees. `value` is the item (`fixed(1)`) or the items stacked on a new dim 0."""

    value: Array
    new: int
    index: int
    first: bool
    tail: bool


class Walk(Protocol):
    """One run of a walk for one request."""

    params: Any  # request params by attribute: walk.params.max_tokens
    config: Any  # config values by attribute
    host: Any  # `lets` and modality questions: walk.host.wants("audio")

    def call(
        self,
        op: str,
        *args: Array,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any:
        """yield: run `node.op`, batched with equal calls of other requests. `only`: indices of the results that are used."""
        ...

    def parallel(self, *calls: Any) -> Any:
        """yield: run calls that do not depend on each other at once; those of one op are rows of one batch. Gives a tuple of what each
        gives; ABSENT in place of a call stays absent.
        """
        ...

    def loop(
        self,
        label: str,
        body: Callable[..., tuple[Array, ...]],
        kind: str,
        bound: int,
        carry: tuple[Array, ...],
        fixed: tuple[Array, ...] = (),
        bodies: Sequence[Callable[..., tuple[Array, ...]]] = (),
    ) -> Any:
        """yield: run a region loop. Gives the carried values, then the collected ones (in the order of `COLLECTS`).

        kind `times` or `max`. `fixed` are values from outside that every iteration reads; the body gets (b, *carry, *fixed). `bodies`:
        one for each iteration, where conditions over `iter` decide between several.
        """
        ...

    def rows(self, values: Array, least: int, count: int) -> Array:
        """The first `count` rows of a value, followed by zeros if it has fewer: what a static loop reads by `iter`.

        Raises IndexError if it has not even `least`, which are read.
        """
        ...

    def send(self, stream: str, item: Array) -> Any:
        """yield: append one item; waits for credit."""
        ...

    def take(self, *streams: str) -> Any:
        """yield: the next chunk of each stream, jointly: one ChunkView, or a tuple of them; ABSENT at the end."""
        ...

    def extern(self, name: str, *args: Any) -> Any:
        """yield: host Python; arrays are materialised as numpy. Gives one value, or a tuple where the extern has several."""
        ...

    def sample(self, sampler: str, logits: Array, site: str) -> Array:
        """One draw (i64 scalar) from logits [vocab]."""
        ...

    def noise(self, dtype: str, dims: tuple[int, ...], site: str) -> Array: ...

    def emit(self, modality: str, value: Array, **attributes: Any) -> None: ...

    def fork(self, target: str, source: str) -> None: ...

    def drop(self, *contexts: str) -> None: ...

    def true(self, flag: Array) -> bool:
        """Read a device bool on the host (`stop when` in a coroutine loop)."""
        ...

    def cause(self, label: str, why: str) -> None:
        """Record why a coroutine loop ended: `stop` or `max`."""
        ...

    def guide(self, v: Array, *branches_and_settings: Any) -> Array:
        """Classifier-free guidance (`mstarc_runtime.guidance`): v untouched where the first branch is ABSENT or its scale at most 1."""
        ...

    def cat(self, items: Sequence[Array]) -> Array:
        """What `collect` gives: items along dim 0, a scalar counting as [1]; an empty list gives an empty array."""
        ...


class Batch(Protocol):
    """The rows (requests) of one iteration of a region. Arrays have a leading dim of rows, aligned with each other; in a ragged region
    (`WorkerProgram.RAGGED`) values with dims are kept request by request, with operators that go row by row.

    `params.x`, `config.x` and `iter` are arrays or scalars that broadcast against rows ([B] for params and iter).
    """

    params: Any
    config: Any
    host: Any
    iter: Array

    def stop(
        self, flag: Array, carried: tuple[Array, ...], live: tuple[Array, ...], why: str = "stop"
    ) -> tuple[Array, ...]:
        """Rows where flag [B] (or a plain bool) holds leave the loop with `carried` as results. Returns `live` for the others.

        why: the cause of the end; `max` where the flag says that the bound is reached.
        """
        ...

    def at(self, table: Array, index: Array) -> Array:
        """table[index] of each row: table [B, n, ...], index [B] or one for all."""
        ...

    def arm(
        self,
        op: str,
        *args: Array,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any:
        """A call for `parallel`."""
        ...

    def parallel(self, *arms: Any) -> tuple[Any, ...]:
        """Run calls that do not depend on each other; those of one op are rows of one batch. Gives what each gives."""
        ...

    def guide(self, v: Array, *branches: Array, settings: Callable[[Any], tuple[Any, ...]]) -> Array:
        """Classifier-free guidance (`mstarc_runtime.guidance`) of each row. settings: what follows the branches, of a row's `iter`,
        `params`, `config` and `host`.
        """
        ...

    def number(self, of: Callable[[Any], Any]) -> Array:
        """f32 [B]: arithmetic of the host on each row's `iter`, `params` and `config`, rounded once at its end."""
        ...

    def call(
        self,
        op: str,
        *args: Array,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any: ...

    def sample(self, sampler: str, logits: Array, site: str) -> Array: ...

    def noise(self, dtype: str, dims: tuple[int, ...], site: str) -> Array: ...

    def emit(self, modality: str, value: Array, **attributes: Any) -> None: ...

    def send(self, stream: str, item: Array) -> None:
        """Credit for every send of one iteration was ensured before it began."""
        ...

    def collect(self, name: str, value: Array) -> None: ...


class WorkerProgram:
    """Base of the generated worker: one coroutine per walk (method of the walk's name), one method per region."""

    MODEL: ClassVar[str] = ""
    #: region method -> {stream: most items that one iteration sends}
    SENDS: ClassVar[Mapping[str, Mapping[str, int]]] = {}
    #: region method -> names it collects, in the order in which `walk.loop` gives them after the carried values
    COLLECTS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: region methods whose values differ in shape from request to request, or are not there for some of them
    RAGGED: ClassVar[tuple[str, ...]] = ()


# --------------------------------------------------------------------------------------------------------------- conductor


@dataclass(frozen=True, slots=True)
class Param:
    """A request parameter. kind: int float bool text bytes enum. `default` None = required, or computed by `default_<name>(request)`.

    ranged: ends of the range depend on the config or other params; `range_<name>(request)` gives both.
    """

    name: str
    kind: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    members: tuple[str, ...] = ()
    computed: bool = False
    ranged: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a request. kind: text, int, float, bool, bytes, enum, image, audio, video, tensor, `parts`, or `part`.

    dims: of a tensor; None = any. A dim is a number, the name of a config or of a length that differs from request to request, or
    None for what is computed from these. Equal names are equal lengths, among the inputs of a request or the fields of a `part`.
    members: of an enum, or the kinds of parts. fields: of a `part`, a declared type.
    """

    name: str
    kind: str
    optional: bool = False
    dtype: str = ""
    members: tuple[str, ...] = ()
    dims: tuple[int | str | None, ...] | None = None
    fields: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A request program: its coroutine's name, inputs, outputs as (modality, optional)."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[tuple[str, bool], ...]


class RequestRun(Protocol):
    """One request as its program sees it."""

    params: Any
    config: Any
    inputs: Any

    def wants(self, modality: str) -> bool: ...

    def given(self, modality: str) -> bool: ...

    def extern(self, name: str, *args: Any) -> Any:
        """yield: host Python in the serving process."""
        ...

    def walk(self, name: str, *args: Any, closes: tuple[str, ...] = ()) -> Any:
        """yield: run a walk on its rank. `closes`: streams that no later walk of this arm sends on. Gives a tuple of results."""
        ...

    def start(self, name: str, *args: Any, closes: tuple[str, ...] = ()) -> Any:
        """yield: as `walk`, but go on at once, without results. The walks that come next, those of the arms of a `together` too, begin
        when it has ended well; so do the ends of the arm and of the request.
        """
        ...

    def together(self, **arms: Any) -> Any:
        """yield: run the arms (coroutines) at once until all have ended."""
        ...

    def require(self, condition: bool, text: str) -> None:
        """False refuses the request: HTTP 400 with `text`."""
        ...


class Need(Protocol):
    """Collects what a walk may write at most, for admission. Unknown lengths count as the context's max."""

    def write(self, context: str, entries: Any) -> None: ...

    def drop(self, *contexts: str) -> None: ...

    def fork(self, target: str, source: str) -> None: ...

    def rows(self, value: Any) -> Any:
        """Length of dim 0 of a host value, unknown for an unknown one."""
        ...


class ConductorProgram:
    """Base of the generated conductor: one coroutine per request and arm; `<walk>_need(request, need, *args)` per walk."""

    MODEL: ClassVar[str] = ""
    PARAMS: ClassVar[tuple[Param, ...]] = ()
    ENTRIES: ClassVar[tuple[Entry, ...]] = ()
    #: label of an arm's coroutine -> (streams it may send on, streams it may take from)
    ARMS: ClassVar[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    #: contexts with a `when`: `context_<name>(request) -> bool` says whether it is on
    SWITCHED: ClassVar[tuple[str, ...]] = ()
    #: names of the spec's `let`s that walks read: `let_<name>(request)` gives the value
    LETS: ClassVar[tuple[str, ...]] = ()
    #: walk or extern -> number of its results. One result of an extern comes bare, several as a tuple; a walk's are always a tuple
    RESULTS: ClassVar[Mapping[str, int]] = {}
