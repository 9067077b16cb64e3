"""`mstarc plan`: tables with the right numbers, placements by name and by path, and what cannot be linked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from mstarc.cli import main
from mstarc.cli.planning import progress
from mstarc_runtime.abi.linked import Linked, StreamLink
from tests.cli.conftest import ROOT, Command

ASK = "generated/ask"


def table(text: str, title: str) -> list[list[str]]:
    """The cells of a printed table, without its heads."""
    lines = text.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
    heads = [i for i in range(len(lines[0])) if lines[0][i - 2 : i] == "  " and lines[0][i] != " "]
    return [[line[a:b].strip() for a, b in zip(heads, [*heads[1:], None], strict=True)] for line in lines[1:]]


def test_everything_is_on_one_rank_without_a_placement(mstarc: Command) -> None:
    ran = mstarc("plan", ASK)
    assert ran.status == 0, ran.err
    assert table(ran.out, "ranks") == [["0", "cpu", "auto", "llm, ears, scribe, voice", "read, hear, answer, speak"]]
    stream = table(ran.out, "streams")[0]
    assert stream[:3] == ["phrases", "phrase(cut=cut, max=64) at_end partial", "answer on 0 to speak on 0"]
    assert stream[3:] == ["slot", "128", "128 >= 64 = 1 + 64 - 1"]


def test_kv_bytes(mstarc: Command) -> None:
    """lm: 2 * 30 layers * 3 heads * 64 numbers of 4 bytes = 46080 bytes, 2048 entries = 90 MiB."""
    rows = {row[3]: row for row in table(mstarc("plan", ASK).out, "KV caches")}
    assert rows["main"] == ["lm", "30 layers, 3 of 9 heads, dim 64", "45.0 KiB", "main", "2048", "90.0 MiB"]
    assert rows["said"][2:] == ["12.0 KiB", "said", "448", "5.2 MiB"]


def test_a_placement_by_name_and_by_path(mstarc: Command) -> None:
    named = mstarc("plan", ASK, "--placement", "2xcpu")
    assert named.status == 0, named.err
    assert [row[3:] for row in table(named.out, "ranks")] == [
        ["llm, ears, scribe", "read, hear, answer"],
        ["voice", "speak"],
    ]
    assert table(named.out, "streams")[0][2:4] == ["answer on 0 to speak on 1", "shm"]
    assert {row[0]: row[1] for row in table(named.out, "walks")} == {
        "read": "0",
        "hear": "0",
        "answer": "0",
        "speak": "1",
    }
    assert mstarc("plan", ASK, "-p", "specs/placements/2xcpu.toml").out == named.out


def test_json_is_the_linked_program(mstarc: Command) -> None:
    ran = mstarc("plan", ASK, "-p", "2xcpu", "--format", "json")
    linked = msgspec.json.decode(ran.out, type=Linked)
    assert (linked.model, linked.placement, len(linked.ranks)) == ("ask", "2xcpu", 2)
    assert json.loads(ran.out)["config"]["vocab"] == 49152


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("[place]\nvoize = 0\n", "MC606", "voice"),
        ("default = 0\n[ranks.0]\n[ranks.1]\n[place]\nears = 1\n", "MC605", "hear"),
        ("[ranks.0\n", "MC608", "[ranks.0"),
    ],
)
def test_what_cannot_be_linked_is_a_finding_in_the_placement(
    mstarc: Command, tmp_path: Path, text: str, code: str, says: str
) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    for verb in ("plan", "call"):
        ran = mstarc(verb, ASK, "--placement", path)
        assert ran.status == 1
        assert (ran.out == "") == (verb == "call" or code != "MC605")  # what cannot be run can be looked at
        assert f"error[{code}]" in ran.err and "odd.toml:" in ran.err and says in ran.err


def test_wrong_calls(mstarc: Command, tmp_path: Path) -> None:
    unknown = mstarc("plan", ASK, "-p", "9xgpu")
    assert (unknown.status, "1xcpu, 1xh200, 2xcpu" in unknown.err) == (2, True)
    assert mstarc("plan", "nowhere").status == 2
    assert mstarc("plan", "specs/ask.walk").status == 2
    empty = mstarc("plan", tmp_path)
    assert (empty.status, "no generated package" in empty.err) == (2, True)


def stream(policy: str, args: dict[str, int], capacity: int | str) -> StreamLink:
    return StreamLink(name="s", policy=policy, args=args, capacity=capacity, source=0, sink=0)


def test_the_inequality_that_admits_progress() -> None:
    assert progress(stream("fixed", {"size": 2}, 8)) == "8 >= 2 = 1 + 2 - gcd(1, 2)"
    assert progress(stream("left_context", {"chunk": 25, "left": 10}, 32)) == "32 < 35 = 1 + 25 + 10 - gcd(1, 25)"
    assert progress(stream("sliding_window", {"size": 4, "stride": 2}, 4)).startswith("4 >= 4 = ")
    assert progress(stream("fixed", {"size": 1}, "param:max_steps+2")) == "max_steps+2 >= 1 = 1 + 1 - gcd(1, 1)"


BAGEL = "generated/bagel"


def test_bagel_on_one_h200(mstarc: Command) -> None:
    """90 branch-steps from text, 147 when an image is edited; the branch of an equal context is not run."""
    ran = mstarc("plan", BAGEL, "-p", "1xh200", "--given", "text", "--wants", "image")
    assert ran.status == 0, ran.err
    assert table(ran.out, "branches") == [
        ["draw.denoise", "41", "2 (v, a)", "82", "-"],
        ["draw.denoise", "8", "1 (v)", "8", "-"],
        ["draw.denoise", "49", "in all", "90", "-"],
    ]
    assert {row[1]: row[8] for row in table(ran.out, "calls")}["llm.velocity"] == "compute"
    edited = mstarc("plan", BAGEL, "-p", "1xh200", "--given", "image", "--given", "text", "--wants", "image")
    assert table(edited.out, "branches") == [["draw.denoise", "49", "3 (v, a, b)", "147", "-"]]
    guided = mstarc("plan", BAGEL, "-p", "1xh200", "--given", "text", "--wants", "image", "--set", "cfg_img=2")
    assert table(guided.out, "branches")[0] == ["draw.denoise", "41", "2 (v, a)", "82", "b: an equal context"]


def test_costs_as_json(mstarc: Command) -> None:
    args = ("plan", BAGEL, "-p", "1xh200", "--given", "text", "--wants", "image", "--set", "height=512", "--set", "T=9")
    ran = mstarc(*args, "--format", "json")
    assert msgspec.json.decode(ran.out, type=Linked).model == "bagel"
    (costs,) = json.loads(ran.out)["costs"]
    assert [(b["iterations"], b["steps"]) for b in costs["branches"]] == [(41, 82), (8, 8)]
    assert costs["assumed"]["T"] == "9 (set)" and costs["chips"] == {"0": "h200"}
    assert costs["memory"][0]["weights"] > 29e9 and costs["seconds"] < 7


def test_costs_of_a_request_that_is_refused(mstarc: Command) -> None:
    for args, says in (
        (("--given", "audio"), "audio"),
        (("--wants", "video"), "video"),
        (("--request", "talk"), "talk"),
        (("--set", "steps=1"), "steps"),
        (("--set", "T=x"), "T"),
        (("--set", "steps"), "name=value"),
    ):
        ran = mstarc("plan", BAGEL, *args)
        assert (ran.status, says in ran.err) == (2, True), (args, ran.err)


def test_several_requests_are_summed_up(mstarc: Command) -> None:
    ran = mstarc("plan", "generated/vjepa2_ac", "-p", "1xh200")
    assert ran.out.count("\ncosts of ") == 5 and "\ncalls\n" not in ran.out and "--request NAME" in ran.out
    one = mstarc("plan", "generated/vjepa2_ac", "-p", "1xh200", "--request", "rollout", "--set", "horizon=4")
    assert {row[1]: row[3] for row in table(one.out, "calls")} == {"encoder.frames": "1", "predictor.step": "4"}


def test_no_costs_of_a_spec_that_has_changed(mstarc: Command, project: Path) -> None:
    spec = project / "specs/hello.walk"
    spec.write_text(spec.read_text() + "\n# more\n")
    ran = mstarc("plan", "generated/hello")
    assert ran.status == 0 and "no costs: specs/hello.walk is not the spec" in ran.out
    asked = mstarc("plan", "generated/hello", "--set", "n=1")
    assert asked.status == 1 and "not the spec" in asked.err
    assert "help: mstarc compile specs/hello.walk -o generated/hello\n" in asked.err


@pytest.mark.parametrize("name", ["hello.walk", "hello.yaml"])
def test_a_stale_package_says_what_has_changed(name: str, mstarc: Command, project: Path) -> None:
    assert mstarc("plan", "generated/hello").err == ""
    changed = project / "specs" / name
    changed.write_text(changed.read_text() + "\n# more\n")
    ran = mstarc("plan", "generated/hello")
    assert (ran.status, ran.err) == (
        0,
        "warning: specs/hello.walk or hello.yaml has changed since `generated/hello` was made from it; "
        "run: mstarc compile specs/hello.walk -o generated/hello\n",
    )
    (project / "specs/hello.walk").unlink()
    assert mstarc("plan", "generated/hello").err == "", "a package may go without its spec"


def test_what_is_not_there_says_where_it_was_looked_for(mstarc: Command, project: Path) -> None:
    ran = mstarc("plan", "nowhere")
    assert ran.status == 2 and f"looked at {project / 'nowhere'}\n" in ran.err
    ran = mstarc("plan", "generated/hello", "-p", "nosuch")
    assert ran.status == 2 and "looked for nosuch, specs/placements/nosuch.toml\n" in ran.err


def test_a_chip_that_is_not_known(mstarc: Command, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[ranks.0]\ndevice = "cuda:0"\nchip = "h2000"\n')
    ran = mstarc("plan", BAGEL, "-p", tmp_path / "p.toml")
    assert ran.status != 0 and "MC606" in ran.err and "`h200`" in ran.err


def test_what_a_loop_collects(mstarc: Command) -> None:
    """30 frames of 256 rows of 1408 numbers of 4 bytes; a frame that is emitted when it is made is not kept."""
    args = ("plan", "generated/vjepa2_ac", "-p", "1xh200", "--request", "rollout", "--set", "horizon=30")
    assert table(mstarc(*args).out, "collected") == [
        ["imagine.dream", "path", "horizon", "30 x 256 x 1408 x 4 B", "43.3 MB"]
    ]
    (costs,) = json.loads(mstarc(*args, "--format", "json").out)["costs"]
    (path,) = costs["collected"]
    assert path["bytes"] == 30 * 256 * 1408 * 4
    assert (path["walk"], path["loop"], path["name"], path["count"]) == ("imagine", "dream", "path", 30)
    (live,) = json.loads(mstarc(*args, "--set", "live=true", "--format", "json").out)["costs"]
    assert live["collected"] == []


def test_a_loop_of_an_op_that_says_async_off_does_not_run_ahead(mstarc: Command, tmp_path: Path) -> None:
    """The fact and its reason, in the IR after the pass and in the plan; without the word the loop does run ahead."""
    text = (ROOT / "specs/orpheus.walk").read_text(encoding="utf-8")
    (tmp_path / "orpheus.yaml").write_text((ROOT / "specs/orpheus.yaml").read_text(encoding="utf-8"))
    for spec, ahead, said in (
        (text, "yes: main, speech cut back", "may run ahead"),
        (_async_off(text), "no", "may not run ahead: `llm.step` says `async off`"),
    ):
        (tmp_path / "orpheus.walk").write_text(spec, encoding="utf-8")
        assert mstarc("compile", tmp_path / "orpheus.walk", "-o", tmp_path / "out").status == 0
        ir = mstarc("ir", tmp_path / "orpheus.walk", "--after", "speculate").out
        assert f"# loop speak.frames: {said}" in ir
        (row,) = [row for row in table(mstarc("plan", tmp_path / "out").out, "regions") if row[0] == "speak.frames"]
        assert ahead in row
        assert ("`llm.step` says `async off`" in row[-1]) == (ahead == "no")


def _async_off(text: str) -> str:
    """The spec with `async off` on `llm.step`."""
    found, count = re.subn(r"(op step\([^)]*\)[^{]*\{)", r"\1 async off ", text)
    assert count == 1
    return found


@pytest.mark.parametrize(
    ("cost", "chip", "says"),
    [
        ("", "", "FLOP unknown, bytes unknown, critical path unknown: the placement says no `chip` of rank 0 and 2 ops have no cost"),
        ("", "h200", "FLOP unknown, bytes unknown, critical path unknown: 2 ops have no cost"),
        ("a: {params: 8, ops: {f: {flops: 5, reads: 8}}}", "h200", "at least 5 FLOP, 64 B, critical path unknown: 1 op has no cost"),
        ("a: {params: 8, ops: {f: {flops: 5, reads: 8}, g: {flops: 2, reads: 0}}}", "h200",
         "7 FLOP, 32 B, critical path 7.44e-06 us at least"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said_to_be_unknown(
    cost: str, chip: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was `0 FLOP`, as if nothing had to be done."""
    (tmp_path / "m.walk").write_text(
        "model m\nnode a : stateless { op f(x: i64) -> y: i64  op g(x: i64) -> y: i64 }\n"
        "walk w(x: i64) { emit a.g(a.f(x)) as scalar }\nrequest r(x: i64) -> scalar { w(x) }\n"
    )
    (tmp_path / "m.yaml").write_text(f"components: {{a: pack.A}}\ncost: {{nodes: {{{cost}}}}}\n")
    (tmp_path / "p.toml").write_text(
        f'[ranks.0]\ndevice = "cpu"\n{f"chip = {chr(34)}{chip}{chr(34)}" if chip else ""}\n'
    )
    assert main(["compile", str(tmp_path / "m.walk"), "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["plan", str(tmp_path / "out"), "--placement", str(tmp_path / "p.toml")]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("one request: "))
    assert line == f"one request: {says}"
