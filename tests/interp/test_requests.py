"""Request programs: params, lets, modalities, `case`, `if`, `require`; and that no result depends on the order of arms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mstarc.interp import RequestRefused
from tests.interp.programs import run, run_all_orders

PARAMS = """
param editing: bool = given(member.image) and wants(member.image)
param scale: float low 0.0 high 20.0 = if let.edit then 2.0 else 1.0
param mode: enum(slow, fast) = member.fast
param needed: int low 1 high 9
let edit = param.editing
walk show() {
  emit param.scale as scalar
  emit param.mode as text
  emit param.needed as tensor
}
request r(%0 image: host media image?, %1 k: host int) -> (scalar, image?) {
  require %1 < param.needed says "k < needed"
  call show()
}
"""


def params(**given: Any) -> list[Any]:
    inputs = given.pop("inputs", {"k": 0})
    wants = given.pop("wants", None)
    out = run(PARAMS, inputs, params=given, wants=wants)
    return [*out.emitted("scalar"), *out.emitted("text"), *out.emitted("tensor")]


def test_defaults_may_depend_on_modalities_and_on_each_other() -> None:
    assert params(needed=3) == [1.0, "fast", 3]
    assert params(needed=3, inputs={"k": 0, "image": b""}) == [1.0, "fast", 3]
    assert params(needed=3, inputs={"k": 0, "image": b""}, wants=["image"]) == [2.0, "fast", 3]
    assert params(needed=3, scale=4, mode="slow") == [4.0, "slow", 3]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "needed"),
        ({"needed": 0}, "needed"),
        ({"needed": 10}, "needed"),
        ({"needed": True}, "needed"),
        ({"needed": 1.5}, "needed"),
        ({"needed": 1, "mode": "loud"}, "mode"),
        ({"needed": 1, "steps": 3}, "steps"),
        ({"needed": 1, "inputs": {}}, "k"),
        ({"needed": 1, "inputs": {"k": 0, "sound": 1}}, "sound"),
        ({"needed": 1, "inputs": {"k": 1}}, "k < needed"),
    ],
)
def test_what_the_client_does_wrong_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        params(**given)
    assert caught.value.field == field
    assert field in str(caught.value)


CASES = """
walk text(%0 part: struct text_part(ids: i64[dim.T])) {
  emit %0.ids as text(n = dim.T)
}
walk image(%0 part: struct image_part(px: i64[])) {
  emit %0.px as image
}
request r(%0 parts: host list(text_part | image_part), %1 all: host bool) -> (text) {
  if %1 {
    parts %0 {
      case text_part %2 a: host struct text_part(ids: i64[dim.T]) {
        call text(%2)
      }
      case image_part %3 b: host struct image_part(px: i64[]) {
        call image(%3)
      }
    }
  } else {
    require false says "all"
  }
}
"""


def test_parts_are_handled_in_order_by_their_kind() -> None:
    parts = [
        SimpleNamespace(kind="text_part", ids=[1, 2]),
        SimpleNamespace(kind="image_part", px=7),
        {"kind": "text_part", "ids": [3]},
    ]
    out = run(CASES, {"parts": parts, "all": True})
    assert [(e.modality, e.value) for e in out.events] == [("text", [1, 2]), ("image", 7), ("text", [3])]
    assert [e.attrs for e in out.events] == [{"n": 2}, {}, {"n": 1}]
    with pytest.raises(RequestRefused, match="all"):
        run(CASES, {"parts": [], "all": False})


# a speech-like model: text tokens feed words, words feed frames, frames are decoded with left context
CHAIN = """
param most: int = 17
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context mind on kv
context mouth on kv
sampler word(temperature = 0.7)
sampler code(temperature = 0.9, repetition_penalty = 1.2) over mouth
node llm: transformer on kv {
  op read(ids: i64[dim.T]) -> (logits: f32[50]) { attend causal positions seq }
  op step(token: i64[]) -> (logits: f32[50], row: f32[4]) { attend causal positions seq }
}
node talker: transformer on kv {
  op step(token: i64[], word: f32[4]?) -> (logits: f32[50]) { attend causal positions seq takes 1 }
}
node vocoder: stateless {
  op decode(frames: i64[dim.n]) -> (pcm: f32[10 * dim.n - 3])
}
stream said: f32[4] by fixed(size = 1) after_end_empty capacity 2
stream frames: i64[] where dim.item % 5 != 0 by left_context(chunk = 3, left = 2) at_end partial capacity 6
walk think(%0 ids: i64[dim.T]) {
  %1 logits: f32[50] = invoke llm.read(%0) writes mind
  %2 first: i64[] = sample word(%1) site "first"
  loop words max param.most
    carry %3 token: i64[] = %2 then %6 -> %7 last: i64[]
  do {
    stop %3 == 13 with (%3)
    emit %3 as text
    %4 scores: f32[50], %5 row: f32[4] = invoke llm.step(%3) writes mind
    send %5 to said
    %6 token_2: i64[] = sample word(%4) site "next"
  }
}
walk talk() {
  loop speaking max 2 * param.most
    carry %0 code: i64[] = 1 then %3 -> %4 last: i64[]
  do {
    %1 word: f32[4]? = next said
    %2 logits: f32[50] = invoke talker.step(%0, %1) writes mouth
    %3 code_2: i64[] = sample code(%2) site "code"
    stop %3 == 7 with (%3)
    send %3 to frames
  }
}
walk vocode() {
  for %0 chunk: chunk(frames, i64[]) in frames {
    %1 pcm: f32[10 * dim.n - 3] = invoke vocoder.decode(%0)
    emit last(%1, 10 * %0.new) as audio(rate = 24000)
  }
}
request r(%0 ids: host i64[dim.T]) -> (text, audio) {
  together {
    arm thinking {
      call think(%0)
    }
    arm talking {
      call talk()
    }
    arm sounding {
      call vocode()
    }
  }
}
"""


@pytest.mark.parametrize("seed", range(6))
def test_no_result_depends_on_the_interleaving(seed: int) -> None:
    outs = run_all_orders(CHAIN, {"ids": [3, 1, 4, seed]}, orders=15, seed=seed)

    def view(out: Any) -> Any:
        audio = [(e.value.key, e.value.shape, e.attrs) for e in out.events if e.modality == "audio"]
        return out.emitted("text"), audio, out.causes, out.contexts, out.draws

    assert all(view(out) == view(outs[0]) for out in outs)
    interleavings = {tuple(e.modality for e in out.events) for out in outs}
    assert len(interleavings) >= (5 if seed == 0 else 1)  # the orders really differ (short answers leave no choice)


def test_pieces_of_the_chain_abut() -> None:
    out = run(CHAIN, {"ids": [3, 1, 4]}, seed=3)
    frames = sum(code % 5 != 0 for code in out.draws["code"][: None if out.causes["talk.speaking"] == "max" else -1])
    assert frames > 3
    assert sum(pcm.shape[0] for pcm in out.emitted("audio")) == 10 * frames - 3
