"""Streams: policies and tails, ends, credit, consumers that end early or do not run (language, sentences 3 to 6)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mstarc.interp import Deadlock, ExecutionError
from tests.interp.programs import run, run_all_orders

# send 0..n-1, show each chunk with its fields
PIPE = """
extern cut(state: int, item: int) -> (state: int, cut: bool)
stream s: i64[] {policy}
walk produce(%0 n: host i64[]) {{
  loop items times %0 do {{
    send iter.items to s
  }}
}}
walk consume() {{
  for %0 c: chunk(s, i64[]) in s {{
    emit %0 as tensor(new = %0.new, index = %0.index, first = %0.first, tail = %0.tail)
  }}
  emit 99 as scalar
}}
request r(%0 n: host i64[]) -> (tensor, scalar) {{
  together {{
    arm one {{
      call produce(%0)
    }}
    arm two {{
      call consume()
    }}
  }}
}}
"""


def chunks(policy: str, n: int, **options: Any) -> list[Any]:
    """What the consumer sees of n items; the same under every order of arms."""
    outs = run_all_orders(PIPE.format(policy=policy), {"n": n}, **options)
    for out in outs:
        assert out.emitted("scalar") == [99]  # the end came, once
        assert out.emitted("tensor") == outs[0].emitted("tensor")
        assert out.events == outs[0].events  # attributes too: one modality at a time comes from one arm
    return outs[0].emitted("tensor")


@pytest.mark.parametrize(
    ("policy", "n", "seen"),
    [
        ("by fixed(size = 1) capacity 1", 3, [0, 1, 2]),  # the item itself
        ("by fixed(size = 2) at_end drop capacity 2", 0, []),
        ("by fixed(size = 2) at_end drop capacity 2", 5, [(0, 1), (2, 3)]),
        ("by fixed(size = 2) at_end partial capacity 2", 5, [(0, 1), (2, 3), (4,)]),
        ("by fixed(size = 2) at_end partial capacity 2", 4, [(0, 1), (2, 3)]),
        ("by fixed(size = 3) at_end pad:zero capacity 4", 5, [(0, 1, 2), (3, 4, 0)]),
        ("by fixed(size = 3) at_end pad:repeat capacity 4", 4, [(0, 1, 2), (3, 3, 3)]),
        ("by sliding_window(size = 3, stride = 2) at_end drop capacity 4", 6, [(0, 1, 2), (2, 3, 4)]),
        ("by sliding_window(size = 3, stride = 2) at_end partial capacity 4", 6, [(0, 1, 2), (2, 3, 4), (4, 5)]),
        ("by sliding_window(size = 3, stride = 2) at_end partial capacity 4", 5, [(0, 1, 2), (2, 3, 4)]),
        ("by sliding_window(size = 3, stride = 2) at_end partial capacity 4", 2, [(0, 1)]),
        ("by left_context(chunk = 3, left = 2) at_end partial capacity 9", 7, [(0, 1, 2), (1, 2, 3, 4, 5), (4, 5, 6)]),
        ("by left_context(chunk = 3, left = 2) at_end partial capacity 9", 6, [(0, 1, 2), (1, 2, 3, 4, 5)]),
        ("by left_context(chunk = 3, left = 2) at_end drop capacity 9", 7, [(0, 1, 2), (1, 2, 3, 4, 5)]),
    ],
)
def test_policies_and_tails(policy: str, n: int, seen: list[Any]) -> None:
    assert chunks(policy, n) == seen


def test_chunk_fields() -> None:
    out = run(PIPE.format(policy="by left_context(chunk = 3, left = 2) at_end partial capacity 9"), {"n": 7})
    assert [e.attrs for e in out.events if e.modality == "tensor"] == [
        {"new": 3, "index": 0, "first": True, "tail": False},
        {"new": 3, "index": 1, "first": False, "tail": False},
        {"new": 1, "index": 2, "first": False, "tail": True},
    ]


def test_phrases_end_at_cuts_and_at_max() -> None:
    def cut(state: int | None, item: int) -> tuple[int, bool]:
        return (state or 0) + item, item in (1, 8)

    policy = 'by phrase(cut = "cut", max = 3) at_end partial capacity 3'
    assert chunks(policy, 11, externs={"cut": cut}) == [(0, 1), (2, 3, 4), (5, 6, 7), (8,), (9, 10)]


def test_the_cut_rule_threads_its_state() -> None:
    def cut(state: int | None, item: int) -> tuple[int, bool]:
        held = (state or 0) + 1
        return (0, True) if held == 4 else (held, False)

    policy = 'by phrase(cut = "cut", max = 10) at_end partial capacity 10'
    assert chunks(policy, 10, externs={"cut": cut}) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


def test_false_items_are_never_items() -> None:
    assert chunks("where dim.item % 3 == 0 by fixed(size = 2) at_end partial capacity 2", 8) == [(0, 3), (6,)]


def test_send_waits_for_credit_and_only_then() -> None:
    text = PIPE.format(policy="by fixed(size = 1) capacity 2").replace(
        "    send iter.items to s\n", "    send iter.items to s\n    emit iter.items as text\n"
    )
    ahead = set()
    for out in run_all_orders(text, {"n": 9}, orders=30):
        sent = taken = 0
        for event in out.events:
            sent += event.modality == "text"
            taken += event.modality == "tensor"
            # a take may not have been shown yet: one more than the capacity
            assert sent - taken <= 2 + 1
            ahead.add(sent - taken)
        assert out.emitted("text") == list(range(9))
    assert max(ahead) >= 2


def test_a_capacity_below_the_chunk_is_a_deadlock_that_names_both_sides() -> None:
    with pytest.raises(Deadlock) as caught:
        run(PIPE.format(policy="by fixed(size = 3) at_end drop capacity 2"), {"n": 9})
    assert set(caught.value.waits) == {"request", "one", "two"}
    assert re.search(r"arm `one` waits for credit on `s` \(capacity 2\) in walk `produce`", str(caught.value))
    assert "arm `two` waits for a chunk of `s` in walk `consume`" in str(caught.value)


# ---------------------------------------------------------------------------------------------------- next, ends, discards

NEXT = """
stream s: i64[] by fixed(size = 1) {empty}capacity 1
node n: stateless {{
  op f(i: i64[], word: i64[]?) -> (y: i64[])
}}
walk produce(%0 n: host i64[]) {{
  loop items times %0 do {{
    send iter.items to s
  }}
}}
walk consume(%0 m: host i64[]) {{
  loop takes times %0 do {{
    %1 word: i64[]? = next s
    emit present(%1) as text
    %2 y: i64[] = invoke n.f(iter.takes, %1)
    emit %2 as tensor
  }}
}}
request r(%0 n: host i64[], %1 m: host i64[]) -> (tensor) {{
  together {{
    arm one {{
      call produce(%0)
    }}
    arm two {{
      call consume(%1)
    }}
  }}
}}
"""


def test_next_is_absent_for_ever_after_the_end() -> None:
    for out in run_all_orders(NEXT.format(empty="after_end_empty "), {"n": 2, "m": 4}):
        assert out.emitted("text") == [True, True, False, False]


def test_next_after_an_undeclared_end_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="`s` has ended"):
        run(NEXT.format(empty=""), {"n": 2, "m": 3})
    assert len(run(NEXT.format(empty=""), {"n": 2, "m": 2}).emitted("tensor")) == 2


def test_items_for_a_consumer_that_has_ended_are_discarded() -> None:
    outs = run_all_orders(NEXT.format(empty=""), {"n": 9, "m": 2})
    for out in outs:
        assert out.emitted("tensor") == outs[0].emitted("tensor")
        assert out.discarded == {"s": 7}


def test_sends_without_a_consumer_in_this_request_are_elided() -> None:
    text = PIPE.format(policy="by fixed(size = 1) capacity 1").replace(
        "request r(%0 n: host i64[]) ->", "param speech: bool = true\nrequest r(%0 n: host i64[]) ->"
    )
    text = text.replace("      call consume()", "      if param.speech {\n        call consume()\n      }")
    for out in run_all_orders(text, {"n": 50}, params={"speech": False}):
        assert out.events == ()
    assert run(text, {"n": 3}).emitted("tensor") == [0, 1, 2]
    alone = text[: text.index("request r")] + "request r(%0 n: host i64[]) -> () {\n  call produce(%0)\n}\n"
    assert run(alone, {"n": 50}).events == ()


ENDS = """
stream s: i64[] by fixed(size = 1) capacity 1
stream t: i64[] by fixed(size = 1) capacity 1
walk produce() {
  loop items times 3 do {
    send iter.items to s
  }
}
walk ask() {
  %0 x: i64[] = next t
  emit %0 as scalar
}
walk consume() {
  for %0 c: chunk(s, i64[]) in s {
    emit %0 as tensor
  }
  send 7 to t
}
walk first_only() {
  %0 c: i64[] = next s
  emit %0 as tensor
  send 7 to t
}
request whole() -> (tensor, scalar) {
  together {
    arm one {
      call produce()
      call ask()
    }
    arm two {
      call consume()
    }
  }
}
request early() -> (tensor, scalar) {
  together {
    arm one {
      call produce()
      call ask()
    }
    arm two {
      call first_only()
    }
  }
}
"""


def test_a_stream_ends_where_its_producer_can_send_no_more_not_where_its_arm_ends() -> None:
    for out in run_all_orders(ENDS, request="whole"):
        assert (out.emitted("tensor"), out.emitted("scalar")) == ([0, 1, 2], [7])


def test_a_consumer_has_ended_where_it_can_take_no_more_not_where_its_arm_ends() -> None:
    for out in run_all_orders(ENDS, request="early"):
        assert (out.emitted("tensor"), out.emitted("scalar")) == ([0], [7])


JOINT = """
stream a: i64[] by fixed(size = 1) capacity 4
stream b: i64[] by fixed(size = 1) capacity 1
walk left() {
  loop items times 3 do {
    send iter.items to a
  }
}
walk right() {
  loop items times 3 do {
    send 10 * iter.items to b
  }
}
walk both() {
  for %0 x: chunk(a, i64[]), %1 y: chunk(b, i64[]) in a, b {
    %2 z: i64[] = compute %0 + %1
    emit %2 as tensor
  }
}
request r() -> (tensor) {
  together {
    arm one {
      call left()
    }
    arm two {
      call right()
    }
    arm three {
      call both()
    }
  }
}
"""


def test_joint_streams_fire_together() -> None:
    for out in run_all_orders(JOINT):
        assert out.emitted("tensor") == [0, 11, 22]


def test_a_stream_runs_anew_in_each_together() -> None:
    text = PIPE.format(policy="by fixed(size = 2) at_end partial capacity 2")
    body = text[text.index("  together") : text.rindex("}")]
    second = body.replace("arm one", "arm three").replace("arm two", "arm four")
    for out in run_all_orders(text[: text.rindex("}")] + second + "}\n", {"n": 3}):
        assert out.emitted("tensor") == [(0, 1), (2,)] * 2


LAST = """
stream s: i64[] by fixed(size = 1) capacity 1
stream t: i64[] by fixed(size = 1) capacity 1
walk produce() {
  loop items times 3 do {
    send iter.items to s
    when iter.items == 2 {
      %0 answer: i64[] = next t
      emit %0 as scalar
    }
  }
}
walk consume() {
  for %0 c: chunk(s, i64[]) in s {
    emit %0 as tensor
  }
  send 7 to t
}
request r() -> (tensor, scalar) {
  together {
    arm one {
      call produce()
    }
    arm two {
      call consume()
    }
  }
}
"""


def test_the_last_body_of_a_loop_is_known_to_be_the_last() -> None:
    for out in run_all_orders(LAST):
        assert (out.emitted("tensor"), out.emitted("scalar")) == ([0, 1, 2], [7])


def test_joint_next_is_absent_for_all_once_one_has_ended() -> None:
    text = JOINT.replace("stream b: i64[] by fixed(size = 1)", "stream b: i64[] by fixed(size = 1) after_end_empty")
    text = text.replace("stream a: i64[] by fixed(size = 1)", "stream a: i64[] by fixed(size = 1) after_end_empty")
    body = """walk both() {
  loop l times 3 do {
    %0 x: i64[]?, %1 y: i64[]? = next a, b
    emit present(%0) as text
    emit present(%1) as tensor
  }
}
"""
    text = text[: text.index("walk both")] + body + text[text.index("request r") :]
    text = text.replace("loop items times 3 do {\n    send 10", "loop items times 1 do {\n    send 10")
    for out in run_all_orders(text):
        assert out.emitted("text") == out.emitted("tensor") == [True, False, False]


INNER = """
stream s: i64[] by fixed(size = 2) at_end partial capacity 2
stream t: i64[] by fixed(size = 1) capacity 1
walk produce(%0 n: host i64[]) {
  loop items times %0 do {
    send iter.items to s
  }
}
walk consume() {
  for %0 c: chunk(s, i64[]) in s {
    emit %0 as tensor
  }
}
walk tell(%0 x: host i64[]) {
  send %0 to t
}
walk hear() {
  for %0 c: chunk(t, i64[]) in t {
    emit %0 as scalar
  }
}
request r() -> (tensor, scalar) {
  together {
    arm outer {
      together {
        arm one {
          call produce(3)
          call tell(1)
        }
        arm two {
          call consume()
        }
      }
      together {
        arm three {
          call produce(1)
        }
        arm four {
          call consume()
        }
      }
      call tell(2)
    }
    arm ears {
      call hear()
    }
  }
}
"""


def test_together_nests() -> None:
    """Inner streams are of the inner `together`; for an outer stream, all arms inside are the outer arm."""
    for out in run_all_orders(INNER):
        assert (out.emitted("tensor"), out.emitted("scalar")) == ([(0, 1), (2,), (0,)], [1, 2])
