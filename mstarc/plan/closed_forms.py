"""What a call costs, in numbers read and FLOPs: closed forms of transformers, else the formulas of the binding's `cost` table.

One layer holds q and o (2 · d · H · h), k and v (2 · d · K · h) and a gated feed-forward (3 · d · f); of a mixture of E experts a row
meets a router (d · E), k experts (3 · d · m each) and the shared one. A row costs 2 FLOPs per number that acts on it; attention costs
4 · H · h FLOPs per layer, row and entry that the row sees. d hidden, H heads, K key-value heads, h head dim, f, m widths.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from mstarc.plan.cost_table import Cost, NodeCost, OpCost
from mstarc.plan.course import Step
from mstarc.plan.formulas import FormulaError, evaluate
from mstarc_runtime.abi.linked import CacheLink, Linked, NodeLink, OpLink

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


@dataclass(frozen=True, slots=True)
class Layer:
    """Numbers of one layer: all of them, and those that act on one row."""

    total: float
    active: float
    experts: float = 0.0  # numbers of all experts; of these, each row meets chosen / count
    share: float = 1.0

    def read(self, rows: float) -> float:
        """Numbers that so many rows need, if each picks its experts at random: E · (1 - (1 - k/E)^rows) of E experts."""
        return float(self.total - self.experts * (1 - self.share) ** rows)


@dataclass(frozen=True, slots=True)
class Work:
    """One call, on one context. weights: numbers read once however many calls share a batch; bytes of entries; None = not known."""

    weights: float | None
    flops: float | None
    entries: float
    source: str


class NodeCosts:
    """Costs of one node. `sections`: the config by section, for formulas. logits: its ops that end in the head."""

    def __init__(
        self,
        node: NodeLink,
        linked: Linked,
        cost: Cost,
        sections: Mapping[str, Mapping[str, Any]],
        logits: Container[str] = (),
    ) -> None:
        self.node, self._sections, self._logits = node, sections, logits
        self.table = cost.nodes.get(node.name, NodeCost())
        self.cache = next((c for c in linked.caches if c.name == node.cache), None)
        self.layer = _layer(node.config)

    # ---------------------------------------------------------------------------------------------------------- whole node

    def params(self) -> tuple[float | None, str]:
        """(numbers of all weights, source)."""
        if self.table.params is not None:
            return self.formula(self.table.params), "cost table"
        if self.layer is None or self.node.kind != "transformer":
            return None, "not known: the `cost` table has no `params`"
        config = self.node.config
        embeddings = config["vocab_size"] * config["hidden_size"] * (1 if config.get("tie_word_embeddings") else 2)
        return config["num_hidden_layers"] * self.layer.total + embeddings, "closed form of its config"

    def entry_bytes(self, number: int) -> int:
        """Bytes of one entry of its cache."""
        return 0 if self.cache is None else 2 * self.cache.layers * self.cache.kv_heads * self.cache.head_dim * number

    # ----------------------------------------------------------------------------------------------------------------- op

    def work(self, step: Step, number: int) -> Work:
        """One run of a call; `number`: bytes of a KV number. Raises FormulaError."""
        op = next(o for o in self.node.ops if o.name == step.op)
        given = self.table.ops.get(step.op, OpCost())
        names = {**step.sizes, "rows": step.rows, "length": step.length}
        reads, flops, source = self._closed(op, step)
        if given.active is not None:
            active = self.formula(given.active, names)
            reads, flops, source = (
                active,
                2 * active * step.rows + self._attention(op, step),
                "cost table and attention",
            )
        if given.reads is not None:
            reads = self.formula(given.reads, names)
        if given.flops is not None:
            flops, source = self.formula(given.flops, names), "cost table"
        written = 0 if op.frozen else step.rows
        return Work(reads, flops, self.entry_bytes(number) * (step.length + step.source + written), source)

    def _closed(self, op: OpLink, step: Step) -> tuple[float | None, float | None, str]:
        if self.node.kind != "transformer":
            return self.params()[0], None, "not known: the `cost` table has no `flops`"
        if self.layer is None:
            return self.params()[0], None, "not known: its config lacks sizes"
        config, layers = self.node.config, self.node.config["num_hidden_layers"]
        head = config["vocab_size"] * config["hidden_size"] if op.name in self._logits else 0
        flops = 2 * step.rows * layers * self.layer.active + 2 * head + self._attention(op, step)
        return layers * self.layer.read(step.rows) + head, flops, "closed form of its config"

    def _attention(self, op: OpLink, step: Step) -> float:
        if self.cache is None:
            return 0.0
        seen = step.length + step.source + ((step.rows + 1) / 2 if op.attend == "causal" else step.rows)
        return 4.0 * self.cache.heads * self.cache.head_dim * self.cache.layers * step.rows * seen

    def activations(self, step: Step, number: int) -> float:
        """Bytes that the rows of a call have at once at most: residual, q, k, v, o and the widest of the feed-forward."""
        if self.cache is None or self.layer is None:
            return 0.0
        config, cache = self.node.config, self.cache
        attention = (2 * cache.heads + 2 * cache.kv_heads) * cache.head_dim
        return float(number * step.rows * (2 * config["hidden_size"] + attention + 2 * _width(config)))

    def formula(self, text: str | int | float, names: Mapping[str, Any] | None = None) -> float:
        """A formula of the table: sizes of the call, keys of the node's section, `section.key`, `params` of the node
        (in an op's formula), and `layer`, the numbers of a layer that act on a row by the closed form.
        """

        def value_of(name: str) -> Any:
            section, _, key = name.rpartition(".")
            if not section and name in (names or {}):
                return (names or {})[name]
            if name == "layer" and self.layer is not None:
                return self.layer.active
            if name == "params" and names is not None and (params := self.params()[0]) is not None:
                return params
            found = (self._sections.get(section, {}) if section else self.node.config).get(key)
            if found is None:
                raise FormulaError(f"`{name}` in the cost of `{self.node.name}` is no size of the call and no config")
            return found

        return evaluate(text, value_of)


def _width(config: Mapping[str, Any]) -> float:
    """Columns of the feed-forward that one row meets."""
    if "num_experts" in config:
        return float(config["num_experts_per_tok"] * config["moe_intermediate_size"])
    return float(config["intermediate_size"])


def _layer(config: Mapping[str, Any]) -> Layer | None:
    """One layer of a decoder from its config, under the names that Hugging Face gives; None if it lacks one."""
    if any(not isinstance(config.get(name), int) for name in SIZES):
        return None
    d, heads, kv, dim = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    attention = 2.0 * d * heads * dim + 2.0 * d * kv * dim
    if "num_experts" in config:
        if any(not isinstance(config.get(name), int) for name in EXPERTS):
            return None
        count, chosen, width = (config[k] for k in EXPERTS)
        shared = 3.0 * d * config.get("shared_expert_intermediate_size", 0)
        experts = 3.0 * d * width * count
        always = attention + d * count + shared
        return Layer(always + experts, always + experts * chosen / count, experts, chosen / count)
    if "intermediate_size" not in config:
        return None
    total = attention + 3.0 * d * config["intermediate_size"]
    return Layer(total, total)


def cache_of(linked: Linked, context: str) -> CacheLink:
    """The cache of a context."""
    name = next(c.cache for c in linked.contexts if c.name == context)
    return next(c for c in linked.caches if c.name == name)
