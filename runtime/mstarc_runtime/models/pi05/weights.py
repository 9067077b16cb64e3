"""Checkpoint tensors -> nets. Keys are those of openpi and LeRobot, with or without a leading `model.`.

Tensors of the vision tower and its connector belong to one net, all others to the other; a net reads its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.pi05.config import PolicyConfig, VisionConfig, folder_of
from mstarc_runtime.models.pi05.nets import PolicyNet, VisionNet
from mstarc_runtime.models.shards import shards

Net = TypeVar("Net", bound=nn.Module)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PALIGEMMA = "paligemma_with_expert.paligemma"
_TOWER = f"{_PALIGEMMA}.model.vision_tower.vision_model"
_CONNECTOR = f"{_PALIGEMMA}.model.multi_modal_projector.linear"
_LANGUAGE = f"{_PALIGEMMA}.model.language_model"
_EXPERT = "paligemma_with_expert.gemma_expert.model"
_HEAD, _EMBED = (
    f"{_PALIGEMMA}.lm_head.weight",
    f"{_LANGUAGE}.embed_tokens.weight",
)  # one tensor; a file holds either or both
_UNUSED = ("paligemma_with_expert.gemma_expert.lm_head.weight",)  # in the published file, of no effect
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_IN_F32 = frozenset({"norm", "norm1", "norm2", "modulation", "action_in", "action_out", "time_in", "time_out"})
_TOWER_IN_F32 = frozenset({"patch", "position"})


@dataclass(frozen=True, slots=True)
class Source:
    """Stored tensors that make one parameter: laid end to end on dim 0, `rows` of each (None = they are one), then `offset` added."""

    names: tuple[str, ...]
    rows: tuple[int, ...] | None = None
    offset: float = 0.0


def vision_net(config: VisionConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> VisionNet:
    """The tower with its weights; random ones if there is no checkpoint. Raises LoadError naming the tensor that is wrong."""
    with torch.device("meta"):
        net = VisionNet(config)
    return _ready(net, _vision_sources(config), checkpoint, _is_vision, dtype, device, seed)


def policy_net(config: PolicyConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> PolicyNet:
    """Language model and expert, as `vision_net`."""
    with torch.device("meta"):
        net = PolicyNet(config)
    return _ready(net, _policy_sources(config), checkpoint, lambda name: not _is_vision(name), dtype, device, seed)


def _ready(
    net: Net,
    sources: Mapping[str, Source],
    checkpoint: Checkpoint,
    mine: Callable[[str], bool],
    dtype: str,
    device: str,
    seed: int,
) -> Net:
    if dtype not in DTYPES:
        raise LoadError(f"pi0.5: dtype `{dtype}` is none of {', '.join(DTYPES)}")
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    if checkpoint.path is None:
        found = _random(shapes, sources, seed, device)
    else:
        stored = _read(folder_of(checkpoint), checkpoint.path, mine)
        _compare(sources, shapes, stored)
        found = {name: _made(sources[name], stored) for name in shapes}
    ready = {name: tensor.to(device, _dtype(name, dtype)) for name, tensor in found.items()}
    net.load_state_dict(ready, assign=True)
    net.requires_grad_(False)
    return net.eval()


def _dtype(name: str, dtype: str) -> torch.dtype:
    """What openpi keeps in f32 stays so: of the policy norms, time and action projections, of the tower patches and positions."""
    kept = _IN_F32 if name.startswith(("language.", "expert.")) else _TOWER_IN_F32
    small = not kept.isdisjoint(name.split("."))
    return torch.float32 if small else DTYPES[dtype]


# ----------------------------------------------------------------------------------------------------------------- sources


def _is_vision(name: str) -> bool:
    return name.startswith((f"{_PALIGEMMA}.model.vision_tower.", f"{_PALIGEMMA}.model.multi_modal_projector."))


def _vision_sources(config: VisionConfig) -> dict[str, Source]:
    """Sources by the names of `VisionNet`."""
    width, found = config.width, {"position": Source((f"{_TOWER}.embeddings.position_embedding.weight",))}
    modules = {
        "patch": f"{_TOWER}.embeddings.patch_embedding",
        "norm": f"{_TOWER}.post_layernorm",
        "connector": _CONNECTOR,
    }
    parts = {
        "norm1": "layer_norm1",
        "out": "self_attn.out_proj",
        "norm2": "layer_norm2",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
    }
    for n in range(config.depth):
        modules |= {f"blocks.{n}.{part}": f"{_TOWER}.encoder.layers.{n}.{stored}" for part, stored in parts.items()}
    for leaf in ("weight", "bias"):
        found |= {f"{module}.{leaf}": Source((f"{stored}.{leaf}",)) for module, stored in modules.items()}
        for n in range(config.depth):
            names = tuple(f"{_TOWER}.encoder.layers.{n}.{part}.{leaf}" for part in _QKV)
            found[f"blocks.{n}.qkv.{leaf}"] = Source(names, (width, width, width))
    return found


def _policy_sources(config: PolicyConfig) -> dict[str, Source]:
    """Sources by the names of `PolicyNet`."""
    found = {
        "language.embed": Source((_HEAD,)),
        "language.norm": Source((f"{_LANGUAGE}.norm.weight",), offset=1.0),
        **_layer_sources("language", _LANGUAGE, config, config.ffn),
        **_layer_sources("expert", _EXPERT, config, config.expert_ffn),
    }
    for n in range(config.layers):
        for part, stored in (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm")):
            found[f"language.layers.{n}.{part}"] = Source((f"{_LANGUAGE}.layers.{n}.{stored}.weight",), offset=1.0)
    norms = [
        f"{_EXPERT}.layers.{n}.{part}"
        for n in range(config.layers)
        for part in ("input_layernorm", "post_attention_layernorm")
    ]
    rows = (3 * config.expert_width,) * (len(norms) + 1)
    projections = {
        "action_in": "action_in_proj",
        "action_out": "action_out_proj",
        "time_in": "time_mlp_in",
        "time_out": "time_mlp_out",
    }
    for leaf in ("weight", "bias"):
        found |= {f"expert.{name}.{leaf}": Source((f"{stored}.{leaf}",)) for name, stored in projections.items()}
        found[f"expert.modulation.{leaf}"] = Source(
            tuple(f"{norm}.dense.{leaf}" for norm in [*norms, f"{_EXPERT}.norm"]), rows
        )
    return found


def _layer_sources(net: str, root: str, config: PolicyConfig, ffn: int) -> dict[str, Source]:
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found: dict[str, Source] = {}
    for n in range(config.layers):
        at, stored = f"{net}.layers.{n}", f"{root}.layers.{n}"
        found[f"{at}.qkv.weight"] = Source(tuple(f"{stored}.{part}.weight" for part in _QKV), (wide, narrow, narrow))
        found[f"{at}.gate_up.weight"] = Source(tuple(f"{stored}.{part}.weight" for part in _GATE_UP), (ffn, ffn))
        found[f"{at}.out.weight"] = Source((f"{stored}.self_attn.o_proj.weight",))
        found[f"{at}.down.weight"] = Source((f"{stored}.mlp.down_proj.weight",))
    return found


# ------------------------------------------------------------------------------------------------------------------ making


def _compare(sources: Mapping[str, Source], shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    """Raise LoadError naming the first tensor that is missing, unexpected, misshaped or no floating-point one."""
    expected: dict[str, tuple[int, ...]] = {}
    for name, source in sources.items():
        rows = source.rows or (shapes[name][0],)
        expected |= {stored: (count, *shapes[name][1:]) for stored, count in zip(source.names, rows, strict=True)}
    for what, names in (("missing", expected.keys() - found.keys()), ("unexpected", found.keys() - expected.keys())):
        if names:
            raise LoadError(f"pi0.5: tensor `{min(names)}` is {what} ({len(names)} in all)")
    for stored, wanted in expected.items():
        tensor = found[stored]
        if tuple(tensor.shape) != wanted:
            raise LoadError(f"pi0.5: tensor `{stored}` has shape {list(tensor.shape)}, expected {list(wanted)}")
        if not tensor.is_floating_point():
            raise LoadError(f"pi0.5: tensor `{stored}` is {tensor.dtype}, expected a floating-point type")


def _made(source: Source, found: Mapping[str, Tensor]) -> Tensor:
    tensor = found[source.names[0]] if source.rows is None else torch.cat([found[name] for name in source.names])
    return tensor.float() + source.offset if source.offset else tensor


def _random(
    shapes: Mapping[str, tuple[int, ...]], sources: Mapping[str, Source], seed: int, device: str
) -> dict[str, Tensor]:
    """Random weights, for tests and measurements without a checkpoint: matrices normal with deviation 0.02, norms 1, biases 0."""
    generator = torch.Generator(device).manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            one = sources[name].offset or ("norm" in name and name.endswith("weight"))
            made[name] = torch.full(shape, 1.0 if one else 0.0, device=device)
        else:
            made[name] = torch.randn(shape, generator=generator, device=device) * 0.02
    return made


# ----------------------------------------------------------------------------------------------------------------- reading


def _read(folder: Path, path: Path, mine: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of one net under their names without `model.`."""
    found: dict[str, Tensor] = {}
    for shard in [path] if path.is_file() else shards(folder):
        try:
            with safe_open(str(shard), framework="pt") as opened:
                file: Any = opened  # its methods carry no types
                for stored in file.keys():  # noqa: SIM118 (not a mapping)
                    name = stored.removeprefix("model.")
                    if name in found:
                        raise LoadError(f"{shard.name}: tensor `{name}` is there twice")
                    if mine(name) and name not in _UNUSED:
                        found[name] = file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{shard} cannot be read: {error}") from error
    return _one_embedding(found)


def _one_embedding(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The text embeddings under the head's name: the head is tied to them."""
    embed = found.pop(_EMBED, None)
    if embed is not None and _HEAD in found and not torch.equal(embed, found[_HEAD]):
        raise LoadError(f"pi0.5: `{_HEAD}` differs from `{_EMBED}`; they are tied")
    if embed is not None:
        found[_HEAD] = embed
    return found
