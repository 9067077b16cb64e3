"""The machine on which the compiler's reference interpreter runs the real components, one request and one call at a time.

It implements `mstarc.interp.Machine` (by shape: nothing of the compiler is imported). A context is one dense tensor per layer to
which each call concatenates: slow, without pages, and simple enough to be the oracle of the paged engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.arrays import Arrays, NumpyArrays, TorchArrays
from mstarc_runtime.checkpoints import Externs
from mstarc_runtime.errors import RuntimeFault
from mstarc_runtime.loading import load_components

if TYPE_CHECKING:
    from torch import Tensor

    from mstarc.interp.machine import DrawKey, OpRun, SamplerState


@dataclass(slots=True)
class DenseStore:
    """Keys and values of one context by layer, [length, kv_heads, head_dim] each. Tensors are never changed in place."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, visible: Tensor | None) -> Tensor:
    """softmax(q kᵀ · scale) v in f32. q [n, heads, d]; k, v [m, kv_heads, d]; visible bool [n, m] or None for all; [n, heads, d]."""
    groups = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1).transpose(0, 1).float() for x in (k, v))
    scores = q.transpose(0, 1).float() @ keys.transpose(1, 2) * (q.shape[2] ** -0.5 if scale is None else scale)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return (scores.softmax(dim=-1) @ values).transpose(0, 1).to(q.dtype)


class DenseRun:
    """Implements `mstarc_runtime.engines.component.Run` for one request (B = 1) on dense stores."""

    def __init__(self, run: OpRun) -> None:
        import torch

        self._run, self._torch = run, torch
        self.rows = [run.takes]
        self.positions = torch.tensor(run.positions, dtype=torch.int64)
        self.last = torch.tensor([run.takes - 1])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        past = self._run.length
        keys, values = self._joined(layer, k, v)
        visible = None
        if self._run.decl.attrs.attend != "full":
            own = self._torch.ones(q.shape[0], k.shape[0], dtype=self._torch.bool).tril()
            visible = self._torch.cat([self._torch.ones(q.shape[0], past, dtype=self._torch.bool), own], dim=1)
        if not self._run.frozen:
            self._run.store.layers[layer] = (keys, values)
        return dense_attention(q, keys, values, scale, visible)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._run.store.layers[layer] = self._joined(layer, k, v)

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        if layer not in self._run.cross.layers:
            raise RuntimeFault(
                f"op `{self._run.node}.{self._run.decl.name}` attends a cross-attention source that is empty"
            )
        keys, values = self._run.cross.layers[layer]
        return dense_attention(q, keys, values, scale, None)

    def _joined(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's entries of the context followed by the new ones. The component must give as many rows as the op takes."""
        if k.shape[0] != self._run.takes or v.shape[0] != self._run.takes:
            name = f"{self._run.node}.{self._run.decl.name}"
            raise RuntimeFault(
                f"op `{name}` takes {self._run.takes} entries, its component wrote {k.shape[0]} in layer {layer}"
            )
        if layer not in self._run.store.layers:
            return k, v
        old_k, old_v = self._run.store.layers[layer]
        return self._torch.cat([old_k, k]), self._torch.cat([old_v, v])


class ComponentMachine:
    """Implements `mstarc.interp.Machine` with components (by node) and externs (by name).

    config: node -> its section. Values are arrays of one library: numpy if every component has `ARRAYS = "numpy"`, else torch; what a
    component takes and gives is of its own.
    """

    def __init__(
        self,
        components: Mapping[str, Any],
        config: Mapping[str, Mapping[str, Any]],
        externs: Mapping[str, Callable[..., Any]] | Externs | None = None,
    ) -> None:
        self._components, self._config = components, config
        self._externs: Any = externs if externs is not None else {}
        self._histories: dict[str, tuple[Any, Any]] = {}
        plain = {node for node, component in components.items() if getattr(component, "ARRAYS", "torch") == "numpy"}
        self.arrays: Arrays = NumpyArrays() if plain == components.keys() else TorchArrays()
        self._plain, self._numpy = plain, NumpyArrays()

    @classmethod
    def of_linked(cls, linked: Linked) -> ComponentMachine:
        """Components, externs and config as a linked program binds them, all on the CPU."""
        components = load_components(linked, linked.nodes, "cpu")
        return cls(components, {node.name: node.config for node in linked.nodes}, Externs(linked))

    def config(self, path: str) -> Any:
        found: Any = self._config
        for part in path.split("."):
            found = found[part]
        return found

    # ----------------------------------------------------------------------------------------------------------- contexts

    def empty(self, context: str, cache: str) -> DenseStore:
        return DenseStore()

    def copy(self, store: DenseStore) -> DenseStore:
        return DenseStore(dict(store.layers))

    # ---------------------------------------------------------------------------------------------------------------- ops

    def invoke(self, run: OpRun) -> tuple[Any, ...]:
        method = getattr(self._components[run.node], run.decl.name)
        batched = run.store is not None or run.decl.attrs.batch == "stack"
        args = [*self._handed(run, batched), *(self._argument(run, k, batched) for k in range(len(run.args)))]
        found: Any = method(DenseRun(run), *args) if run.store is not None else method(*args)
        count = len(run.decl.results)
        results = tuple(found) if count > 1 else (found,)[:count]
        if batched:
            results = tuple(self._row(run, k, result) for k, result in enumerate(results))
        return tuple(self.arrays.asarray(result) for result in results)

    def _handed(self, run: OpRun, batched: bool) -> list[Any]:
        """What the op's attributes add before its arguments, as `worker.handed` has it."""
        from mstarc_runtime.sampling.op_noise import OpNoise
        from mstarc_runtime.worker.cells import OpCells

        arrays = self._library(run.node)
        if run.node in self._plain:
            run.cells.update({name: self.arrays.to_host(value) for name, value in run.cells.items()})
        found: list[Any] = [OpCells(arrays, [run.cells], batched)] if run.cells else []
        if run.key is not None:
            found.append(OpNoise(arrays, [_philox_key(run.key)], batched))
        draw = run.draw
        if draw is not None:
            found.append((lambda logits: draw(logits[0])[None]) if batched else draw)
        return found

    def cell(self, kind: Any, dims: tuple[int, ...], init: Any) -> Any:
        from mstarc_runtime.worker.cells import new_cell

        return new_cell(self.arrays, kind.dtype, dims, init)

    def _library(self, node: str) -> Arrays:
        """The library of the arrays that a node's component takes."""
        return self._numpy if node in self._plain else self.arrays

    def _argument(self, run: OpRun, k: int, batched: bool) -> Any:
        """An argument as the component protocol has it for one request: packed as it is, host in a list, others on a new dim 0."""
        port, value = run.decl.params[k], run.args[k]
        if value is None:
            return None
        if port.host:
            return [value] if run.store is not None else value
        array = self.arrays.to_host(value) if run.node in self._plain else self.arrays.asarray(value)
        packed = run.store is not None and _is_packed(port.type)
        return array[None] if batched and not packed else array

    def _row(self, run: OpRun, k: int, result: Any) -> Any:
        packed = run.store is not None and _is_packed(run.decl.results[k].type)
        return result if packed else result[0]

    def sample(self, logits: Any, sampler: SamplerState, key: DrawKey) -> Any:
        import torch

        from mstarc_runtime.sampling.sampler import Row, draw

        over = torch.tensor(list(sampler.over), dtype=torch.int64) if sampler.over else None
        row = Row(_settings(sampler), self._history(sampler), _philox_key(key), over)
        return draw(torch.as_tensor(logits)[None], [row])[0]

    def _history(self, sampler: SamplerState) -> Any:
        """The sampler's own draws so far. `draw` adds to it as the interpreter adds to `own`: it is rebuilt for another request."""
        from mstarc_runtime.sampling.sampler import History

        owner, history = self._histories.get(sampler.name, (None, None))
        if owner is not sampler.own or history.count != len(sampler.own):
            import torch

            history = History()
            for token in sampler.own:
                history.append(torch.tensor(token))
            self._histories[sampler.name] = (sampler.own, history)
        return history

    def noise(self, dtype: str, shape: tuple[int, ...], key: DrawKey) -> Any:
        import torch

        from mstarc_runtime.sampling.philox import normals

        kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        if dtype not in kinds:
            raise RuntimeFault(f"noise of `{dtype}` at `{key.site}`: only float types have normal noise")
        return torch.from_numpy(normals(shape, _philox_key(key))).to(kinds[dtype])

    def extern(self, name: str, args: tuple[Any, ...], results: int) -> tuple[Any, ...]:
        found = self._externs[name](*args)
        return tuple(found) if results > 1 else (found,)

    # ------------------------------------------------------------------------------------------------------------- arrays

    def host(self, value: Any) -> Any:
        """An array as numpy, a scalar as a Python number; host values stay what they are."""
        if not hasattr(value, "shape"):
            return value
        array = self.arrays.to_host(value)
        return array.item() if array.ndim == 0 else array

    def truth(self, value: Any) -> bool:
        return bool(value)

    def shape(self, value: Any) -> tuple[int, ...]:
        if hasattr(value, "shape"):
            return tuple(value.shape)
        return (len(value),) if isinstance(value, list | tuple) else ()

    def stack(self, items: Sequence[Any]) -> Any:
        return self.arrays.stack([self.arrays.asarray(item) for item in items])

    def cat(self, items: Sequence[Any]) -> Any:
        return self.arrays.cat(items)

    def last(self, value: Any, count: int) -> Any:
        return value[max(0, value.shape[0] - int(count)) :]

    def zero(self, value: Any) -> Any:
        return self.arrays.zeros_like(self.arrays.asarray(value))

    def guide(self, args: tuple[Any, ...]) -> Any:
        from mstarc_runtime.guidance import guide

        return guide(*args)


def _settings(sampler: SamplerState) -> Any:
    """The sampler's settings as the sampler takes them: lists of ids as tuples. Raises RuntimeFault for an unknown one."""
    from mstarc_runtime.sampling.sampler import Settings

    named: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in sampler.settings.items()
    }
    try:
        return Settings(**named)
    except TypeError as error:
        raise RuntimeFault(f"sampler `{sampler.name}`: {error}") from error


def _philox_key(key: DrawKey) -> Any:
    from mstarc_runtime.sampling import philox

    return philox.DrawKey(key.seed, f"{key.walk}/{key.site}", key.index)


def _is_packed(kind: Any) -> bool:
    """Whether dim 0 of a port's type is free: such arrays are concatenated over a batch, not stacked."""
    dims: Sequence[Any] = getattr(kind, "dims", ())
    return bool(dims) and _names_a_dim(dims[0])


def _names_a_dim(expr: Any) -> bool:
    if getattr(expr, "scope", "") == "dim":
        return True
    return any(
        _names_a_dim(part) for part in (getattr(expr, name, None) for name in ("x", "a", "b")) if part is not None
    )
