"""The components of nodes, made once in a process. Takes nodes of a linked program; gives objects with a method per op.

A node with `weights of N` has no weights of its own. If its class is that of N, both nodes are one component; else its class makes one of
N's with `share`, which keeps N's tensors and copies none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mstarc_runtime.abi.linked import Linked, NodeLink
from mstarc_runtime.checkpoints import LazyCheckpoints, resolve
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError, RuntimeFault, describe

Progress = Callable[[int, int, str], None]
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16"}  # by the precision of a node


def load_components(
    linked: Linked, nodes: Sequence[NodeLink], device: str, progress: Progress = lambda done, total, what: None
) -> dict[str, Any]:
    """Component by node. Those whose weights others take are loaded first, also where no walk calls them here. Raises LoadError."""
    owners = {node.weights for node in nodes if node.weights}
    wanted = [node for node in linked.nodes if node.name in owners or node in nodes]
    checkpoints = LazyCheckpoints(linked)
    made: dict[str, Any] = {}
    for done, node in enumerate(sorted(wanted, key=lambda node: bool(node.weights))):
        progress(done, len(wanted), f"loading {node.name}")
        try:
            made[node.name] = _component(linked, node, made, checkpoints, device)
        except RuntimeFault:
            raise
        except Exception as error:
            raise LoadError(f"loading `{node.name}` ({node.component}) failed: {describe(error)}") from error
    progress(len(wanted), len(wanted), "loaded")
    return made


def _component(
    linked: Linked, node: NodeLink, made: Mapping[str, Any], checkpoints: LazyCheckpoints, device: str
) -> Any:
    cls: Any = resolve(node.component)
    if not node.weights:
        checkpoint = checkpoints[node.checkpoint] if node.checkpoint else Checkpoint()
        checkpoint = replace(checkpoint, rules=tuple(node.rules))
        return cls.load(checkpoint, config_on(node, device), device)
    owner = made[node.weights]
    if any(other.name == node.weights and resolve(other.component) is cls for other in linked.nodes):
        return owner
    share = getattr(cls, "share", None)
    if share is None:
        raise LoadError(
            f"node `{node.name}` has the weights of `{node.weights}`, and its class `{node.component}` neither is that of "
            f"`{node.weights}` nor has `share(owner, config, device)`"
        )
    return share(owner, config_on(node, device), device)


def config_on(node: NodeLink, device: str) -> dict[str, Any]:
    """The node's config; on a GPU with the `dtype` that its precision asks for, bfloat16 if it asks for none, unless it names one."""
    if not device.startswith("cuda"):
        return node.config
    return {"dtype": DTYPES.get(node.precision, "bfloat16"), **node.config}
