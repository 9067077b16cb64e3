"""What a model author writes: the protocol between an engine and the component bound to a node.

A component is a class named in `specs/<model>.yaml`. It has one method per op of its node, of the op's name.

*Stateless node.* The method takes the op's arguments of ONE request, without a batch dim, and returns the outputs of one request
(a tuple where the op has several). With the op attribute `batch stack` it takes every argument stacked on a new dim 0 and
returns every output with that dim. Arrays are torch tensors; a component with `ARRAYS = "numpy"` gets numpy arrays, and a
worker whose components all say so never imports torch.

*Declarations* of the node and op hand a method more, before its arguments (after the `Run`), in this order:

* `state`: a `Cells`, see there;
* `random`: a `Noise`. Its numbers are keyed by the request's seed, the walk, the op and how often this walk called it in this
  request, so they depend on neither batch nor rank; several `normal`s of one call give different numbers, in the order of the calls;
* `samples S`: a function of logits that draws with S, as `sample(S, logits)` in the calling walk does: same history, same count of
  draws.

Where arguments have the requests on dim 0, so has everything that these give and take.

A method must not change its arguments: they may be carried, emitted or sent.

*Captured on a GPU.* A stateless op whose spec fixes every dim runs as a CUDA graph. Where dims are free, a component may name the shapes
that come again and again in `usual_shapes(self, op: str) -> list[tuple[tuple[int, ...], ...]]`: for each usual call the shapes of one
request's arguments. They are captured before the first request; calls of other shapes run kernel by kernel. So does an op that waits
for the device (`item()`, `nonzero`, a tensor made from host values), which is found when it is tried; with an empty list it is not tried.

*Transformer node.* The method's first argument is a `Run`: the packed batch. An argument of type `i64` arrives as [B]; one whose
first dim is free (`i64[T]`, `f32[A, d]`) arrives packed, concatenated over the batch, [ΣT, ...]. Outputs are batched on dim 0:
`f32[vocab]` is returned as [B, vocab].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mstarc_runtime.errors import LoadError
from mstarc_runtime.weights import Fit, Weights, mapped, stored
from mstarc_runtime.weights.files import NAMES

if TYPE_CHECKING:
    from torch import Tensor


class Run(Protocol):
    """One packed call of a transformer op on B requests (ΣT rows in all). Layers are numbered from 0.

    A row is one new token (or embedding) of one request; the rows of a request are adjacent and in order.
    """

    @property
    def rows(self) -> list[int]:
        """How many rows each of the B requests has."""
        ...

    @property
    def positions(self) -> Tensor:
        """Position of each row, i64 [ΣT], as the op's `positions` rule says."""
        ...

    @property
    def last(self) -> Tensor:
        """Index of the last row of each request, i64 [B]: `hidden[run.last]` feeds the head."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Append k and v [ΣT, kv_heads, head_dim] to the op's context (unless it is frozen) and attend.

        q is [ΣT, heads, head_dim]; returns [ΣT, heads, head_dim]. Row i of a request sees the whole context as it was before
        the call, and own rows up to i (`attend causal`) or all own rows (`attend full`). `scale` is head_dim ** -0.5 if None.
        """
        ...

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Append k and v [ΣT, kv_heads, head_dim] to the op's context without attending (a cross-attention source)."""
        ...

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        """Attend q [ΣT, heads, head_dim] over the context that the call names with `reads`, without a mask or a write."""
        ...


class Cells(Protocol):
    """A node's `state` in the request, by attribute. A new value is assigned, never written in place."""

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None: ...


class Noise(Protocol):
    """What an op with the attribute `random` draws from."""

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [*shape] ([B, *shape] with `batch stack` or of a transformer), on the component's device."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a component finds its weights: `path` is a file or folder that exists and whose digest was checked.

    `path` is None when the node is bound to no checkpoint. `cache_dir` is a folder that a loader may use for derived tensors
    (dequantised weights), keyed by `digest`. `rules` are those of the node's `weights` in the binding.
    """

    path: Path | None = None
    digest: str = ""
    cache_dir: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    rules: tuple[Mapping[str, Any], ...] = ()

    def tensors(self, files: Sequence[str] = NAMES) -> Weights:
        """The tensors of a weight file, or of those of a folder, under the names that the rules give them, unread. Raises LoadError.

        files: the weight files that a folder may have, the first that is there.
        """
        if self.path is None:
            raise LoadError("a node without a checkpoint has no tensors")
        return mapped(stored(self.path, files), self.rules)


class Component(Protocol):
    """The class side: how the worker builds the component of a node."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Component:
        """Build the component with its weights. `config` is the node's section of the YAML, overlaid by the checkpoint's own.

        Raises `mstarc_runtime.errors.LoadError` naming the key, file or shape that is wrong.
        """
        ...


class FittingComponent(Component, Protocol):
    """The class side of a component whose weights can be judged before anything is loaded (`mstarc check --checkpoint`)."""

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` would fill: shapes of the parameters, and the tensors for them, unread. Raises LoadError."""
        ...


class SharingComponent(Protocol):
    """The class side of a node with `weights of N`, unless it is the class of N: then both nodes are one component."""

    @classmethod
    def share(cls, owner: Any, config: Mapping[str, Any], device: str) -> SharingComponent:
        """Build the component from that of N. It keeps N's tensors and copies none, so they are in memory once."""
        ...
