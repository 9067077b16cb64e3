"""The interpreter on real components: hello's integers, and a small transformer on dense contexts."""

from __future__ import annotations

from typing import Any

import pytest

from examples.hello.components import Adder, Counter
from mstarc.interp import Outcome, interpret
from mstarc_runtime.errors import RuntimeFault
from tests.interp.component_machine import ComponentMachine, dense_attention
from tests.interp.programs import program

torch = pytest.importorskip("torch")

HELLO = """
config limit from "counter.limit"
param max_steps: int low 1 high 1000 = 10
node counter: stateless {
  op first(x: i64[]) -> (y: i64[])
  op next(x: i64[]) -> (y: i64[]) { batch stack }
}
node adder: stateless {
  op pair(xs: i64[2]) -> (total: i64[])
}
stream numbers: i64[] by fixed(size = 2) at_end pad:zero capacity 8
walk count(%0 start: i64[]) {
  %1 n: i64[] = invoke counter.first(%0)
  loop counting max param.max_steps
    carry %2 n_2: i64[] = %1 then %3 -> %4 n_3: i64[]
  do {
    stop %2 == config.limit with (%2)
    emit %2 as tensor
    send %2 to numbers
    %3 n_4: i64[] = invoke counter.next(%2)
  }
}
walk add() {
  for %0 two: chunk(numbers, i64[]) in numbers {
    %1 total: i64[] = invoke adder.pair(%0)
    emit %1 as scalar
  }
}
request sums(%0 start: host i64[]) -> (scalar, tensor) {
  together {
    arm counting {
      call count(%0)
    }
    arm adding {
      call add()
    }
  }
}
"""


def hello(start: int, limit: int, **options: Any) -> Outcome:
    machine = ComponentMachine({"counter": Counter(), "adder": Adder()}, {"counter": {"limit": limit}})
    return interpret(program(HELLO), machine, {"start": start}, **options)


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_hello_counts_and_adds(order: int | None) -> None:
    out = hello(3, 8, order=order)
    assert out.emitted("tensor") == [3, 4, 5, 6, 7]
    assert out.emitted("scalar") == [7, 11, 7]
    assert out.causes == {"count.counting": "stop"}
    out = hello(3, 8, order=order, params={"max_steps": 4})
    assert (out.emitted("scalar"), out.causes) == ([7, 11], {"count.counting": "max"})
    assert hello(8, 8, order=order).events == ()


def test_hello_events_in_the_order_of_the_first_arm_first() -> None:
    assert [(e.modality, int(e.value), e.walk) for e in hello(3, 6).events] == [
        ("tensor", 3, "count"),
        ("tensor", 4, "count"),
        ("tensor", 5, "count"),
        ("scalar", 7, "add"),
        ("scalar", 5, "add"),
    ]


# ------------------------------------------------------------------------------------------------------- dense attention

LM = """
cache kv(layers = 2, heads = 4, kv_heads = 2, head_dim = 8)
context main on kv
context other on kv
context source on kv
node lm: transformer on kv {
  op read(ids: i64[dim.T]) -> (logits: f32[20], rows: f32[dim.T, 32]) { attend causal positions seq }
  op step(token: i64[]) -> (logits: f32[20]) { attend causal positions seq }
  op peek(x: f32[2, 32]) -> (y: f32[2, 32]) { attend full positions same takes 2 frozen }
  op note(rows: f32[dim.N, 32]) -> () { takes dim.N }
  op hear(token: i64[]) -> (logits: f32[20]) { attend causal positions seq cross }
}
"""


class Lm:
    """Two layers of attention over embedded ids plus embedded positions."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator) * 0.3

        self.ids, self.places, self.head = draw(20, 32), draw(64, 32), draw(32, 20)
        self.q, self.k, self.v = draw(2, 32, 32), draw(2, 32, 16), draw(2, 32, 16)

    def _qkv(self, x: Any, layer: int) -> tuple[Any, Any, Any]:
        return (
            (x @ self.q[layer]).view(-1, 4, 8),
            (x @ self.k[layer]).view(-1, 2, 8),
            (x @ self.v[layer]).view(-1, 2, 8),
        )

    def _layers(self, run: Any, x: Any, cross: bool = False) -> Any:
        for layer in range(2):
            q, k, v = self._qkv(x, layer)
            x = x + run.attend(layer, q, k, v).reshape(-1, 32)
            x = x + run.cross(layer, q).reshape(-1, 32) if cross else x
        return x

    def read(self, run: Any, ids: Any) -> tuple[Any, Any]:
        x = self._layers(run, self.ids[ids] + self.places[run.positions])
        return x[run.last] @ self.head, x

    def step(self, run: Any, token: Any) -> Any:
        assert token.shape == (1,)
        return self.read(run, token)[0]

    def peek(self, run: Any, x: Any) -> Any:
        assert x.shape == (1, 2, 32)
        return self._layers(run, x[0])[None]

    def note(self, run: Any, rows: Any) -> None:
        for layer in range(2):
            _, k, v = self._qkv(rows, layer)
            run.write(layer, k, v)

    def hear(self, run: Any, token: Any) -> Any:
        return self._layers(run, self.ids[token] + self.places[run.positions], cross=True) @ self.head


def lm(body: str) -> list[Any]:
    text = (
        LM
        + "walk w(%0 ids: i64[dim.T]) {\n"
        + body
        + "}\nrequest r(%0 ids: host i64[dim.T]) -> (tensor) {\n  call w(%0)\n}\n"
    )
    return interpret(program(text), ComponentMachine({"lm": Lm()}, {}), {"ids": [3, 1, 4, 1, 5]}).emitted("tensor")


def test_reading_at_once_equals_stepping() -> None:
    whole = "  %1 l: f32[20], _ = invoke lm.read(%0) writes main\n  emit %1 as tensor\n"
    steps = (
        "".join(f"  %{i + 1} l{i}: f32[20] = invoke lm.step(%0[{i}]) writes other\n" for i in range(5))
        + "  emit %5 as tensor\n"
    )
    (a,), (b,) = lm(whole), lm(steps)
    assert a.shape == (20,)
    assert torch.allclose(a, b, atol=1e-5)
    assert torch.argmax(a) == torch.argmax(b)


def test_frozen_reads_and_forks_do_not_disturb() -> None:
    body = """  %1 l: f32[20], %2 rows: f32[dim.T, 32] = invoke lm.read(%0) writes main
  fork other from main
  %3 a: f32[2, 32] = invoke lm.peek(%2[0:2]) reads other
  %4 m: f32[20] = invoke lm.step(7) writes main
  %5 b: f32[2, 32] = invoke lm.peek(%2[0:2]) reads other
  %6 c: f32[2, 32] = invoke lm.peek(%2[0:2]) reads main
  emit %3 as tensor
  emit %5 as tensor
  emit %6 as tensor
"""
    a, b, c = lm(body)
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


def test_a_cross_source_is_written_once_and_attended_without_a_mask() -> None:
    start = "  %1 l: f32[20], %2 rows: f32[dim.T, 32] = invoke lm.read(%0) writes other\n"
    body = (
        start
        + """  invoke lm.note(%2) writes source
  %3 a: f32[20] = invoke lm.hear(7) writes main reads source
  %4 b: f32[20] = invoke lm.hear(7) writes main reads source
  emit %3 as tensor
  emit %4 as tensor
"""
    )
    a, b = lm(body)
    assert not torch.allclose(a, b)  # the second step has one more entry of its own
    model, x = Lm(), None

    class Oracle:
        """One request, everything recomputed from full tensors."""

        def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
            return v.repeat_interleave(2, dim=1)  # one entry: its own

        def cross(self, layer: int, q: Any) -> Any:
            _, k, v = model._qkv(x, layer)
            return torch.nn.functional.scaled_dot_product_attention(
                *(t.transpose(0, 1)[None] for t in (q, k, v)), enable_gqa=True
            )[0].transpose(0, 1)

    class Prompt:
        positions, last = torch.arange(5), torch.tensor([4])

        def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(
                *(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True, enable_gqa=True
            )[0].transpose(0, 1)

    _, x = model.read(Prompt(), torch.tensor([3, 1, 4, 1, 5]))
    due = model._layers(Oracle(), model.ids[torch.tensor([7])] + model.places[:1], cross=True) @ model.head
    assert torch.allclose(a, due[0], atol=1e-5)
    with pytest.raises(RuntimeFault, match="source that is empty"):
        lm("  %1 a: f32[20] = invoke lm.hear(7) writes main reads source\n")


def test_a_component_that_writes_another_number_of_entries_is_named() -> None:
    body = "  %1 l: f32[20], %2 rows: f32[dim.T, 32] = invoke lm.read(%0) writes other\n  invoke lm.note(%2) writes source\n"
    assert lm(body) == []
    wrong = LM.replace("{ takes dim.N }", "{ takes dim.N + 1 }")
    text = (
        wrong
        + "walk w(%0 ids: i64[dim.T]) {\n"
        + body
        + "}\nrequest r(%0 ids: host i64[dim.T]) -> () {\n  call w(%0)\n}\n"
    )
    with pytest.raises(RuntimeFault, match=r"op `lm\.note` takes 6 entries, its component wrote 5 in layer 0"):
        interpret(program(text), ComponentMachine({"lm": Lm()}, {}), {"ids": [3, 1, 4, 1, 5]})


def sampled(settings: str, seed: int = 0, steps: int = 6) -> tuple[list[int], Outcome]:
    """Ids drawn from a running model, each fed back."""
    text = (
        LM.replace("node lm", f"sampler pick({settings}) over main\nnode lm")
        + f"""walk w(%0 ids: i64[dim.T]) {{
  %1 l: f32[20], _ = invoke lm.read(%0) writes main
  %2 first: i64[] = sample pick(%1) site "first"
  loop words times {steps}
    carry %3 token: i64[] = %2 then %5 -> %6 last: i64[]
  do {{
    emit %3 as text
    %4 scores: f32[20] = invoke lm.step(%3) writes main
    %5 token_2: i64[] = sample pick(%4) site "next"
  }}
}}
request r(%0 ids: host i64[dim.T]) -> (text) {{
  call w(%0)
}}
"""
    )
    out = interpret(program(text), ComponentMachine({"lm": Lm()}, {}), {"ids": [3, 1, 4, 1, 5]}, seed=seed)
    return [int(x) for x in out.emitted("text")], out


def test_draws_are_those_of_the_runtimes_sampler() -> None:
    greedy, out = sampled("temperature = 0")
    model, seen = Lm(), [3, 1, 4, 1, 5]
    for token in greedy:

        class Whole:
            positions, last = torch.arange(len(seen)), torch.tensor([len(seen) - 1])

            def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
                heads = (t.transpose(0, 1)[None] for t in (q, k, v))
                return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[
                    0
                ].transpose(0, 1)

        assert token == int(model.read(Whole(), torch.tensor(seen))[0].argmax())
        seen.append(token)
    assert out.draws["pick"][:-1] == tuple(greedy)
    assert out.contexts["main"] == (5 + 6, 5 + 6)


def test_draws_depend_on_the_seed_and_on_nothing_else() -> None:
    hot = "temperature = 3.0, top_k = 12, repetition_penalty = 1.4"
    assert sampled(hot, seed=4)[0] == sampled(hot, seed=4)[0]
    assert len({tuple(sampled(hot, seed=s)[0]) for s in range(6)}) == 6
    barred, _ = sampled("temperature = 3.0, suppress = 0..19 except [7, 8]", steps=12)
    assert set(barred) == {7, 8}
    first, _ = sampled("temperature = 0, suppress_first = 0..19 except 7", steps=3)
    assert first[0] == 7
    assert set(first[1:]) != {7}


def test_noise_is_the_runtimes() -> None:
    from mstarc_runtime.sampling import philox

    text = """walk w(%0 n: host i64[]) {
  loop l times 2 do {
    %1 x: f32[2, 3] = noise site "x"
    emit %1 as tensor
  }
}
request r(%0 n: host i64[]) -> (tensor) {
  call w(%0)
}
"""
    out = interpret(program(text), ComponentMachine({"lm": Lm()}, {}), {"n": 1}, seed=9)
    for j, found in enumerate(out.emitted("tensor")):
        assert torch.equal(found, torch.from_numpy(philox.normals((2, 3), philox.DrawKey(9, "w/x", j))))


def test_guidance() -> None:
    machine = ComponentMachine({"lm": Lm()}, {})
    v, a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 2.0]])
    plain = b + 2 * (a + 3 * (v - a) - b)
    for renorm in ("global", "channel"):
        assert torch.allclose(machine.guide((v, a, b, 3.0, 2.0, renorm, 0.0)), plain * (5 / plain.norm()), atol=1e-5)
    assert torch.allclose(machine.guide((v, a, b, 3.0, 2.0, "global", 1.0)), plain)
    text = a + 3 * (v - a)
    text = text * (5 / text.norm())
    assert torch.allclose(machine.guide((v, a, b, 3.0, 2.0, "text_channel", 0.0)), b + 2 * (text - b), atol=1e-5)


def test_dense_attention_equals_torch() -> None:
    q, k, v = torch.randn(3, 4, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    due = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(0, 1)[None] for t in (q, k, v)), enable_gqa=True, scale=0.2
    )[0].transpose(0, 1)
    assert torch.allclose(dense_attention(q, k, v, 0.2, None), due, atol=1e-5)
