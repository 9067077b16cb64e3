"""Rules from the tensors of a checkpoint to the parameters of a component: what each does, and what it says where it does not fit."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from mstarc.binding import read_binding
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc.weight_rules import _RULES, _TRANSFORMS
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.loading import load_components
from mstarc_runtime.weights import Fit, Weight, fill, fit_of, mapped, stored, weight
from mstarc_runtime.weights.rules import VERBS
from mstarc_runtime.weights.transforms import TRANSFORMS
from tests.codegen.written import compiled

ONE, TWO = torch.arange(6.0).view(2, 3), torch.arange(6.0, 12.0).view(2, 3)
FILE = {
    "model.layers.0.q.weight": ONE,
    "model.layers.0.k.weight": TWO,
    "model.layers.1.q.weight": TWO,
    "model.layers.1.k.weight": ONE,
    "model.embed": ONE,
    "other.x": TWO,
}


def unread(file: Mapping[str, Tensor], read: list[str] | None = None) -> dict[str, Weight]:
    """Tensors as if they lay in a file; the names of those that are read go into `read`."""

    def one(name: str) -> Tensor:
        if read is not None:
            read.append(name)
        return file[name]

    kind = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in file.items()}
    return {name: weight(name, x.shape, kind[name], "w.safetensors", partial(one, name)) for name, x in file.items()}


def made(file: Mapping[str, Tensor], *rules: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors after rules; the shapes that the rules say are theirs, and no rule misfits."""
    weights = mapped(unread(file), rules)
    assert not weights.misfits
    found = {name: each.read() for name, each in weights.tensors.items()}
    assert {name: tuple(x.shape) for name, x in found.items()} == {n: w.shape for n, w in weights.tensors.items()}
    return found


def told(file: Mapping[str, Tensor], rules: Sequence[dict[str, Any]], **shapes: tuple[int, ...]) -> list[str]:
    """The problems of tensors after rules with parameters, `kind: text`."""
    named = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return [f"{each.kind}: {each.text}" for each in Fit("n", mapped(unread(file), rules), named).problems()]


# --- verbs


def test_strip_leaves_what_is_not_under_it_and_drop_takes_several() -> None:
    found = made(FILE, {"strip": "model."})
    assert set(found) == {name.removeprefix("model.") for name in FILE}
    assert set(made(FILE, {"drop": "model.layers.**"})) == {"model.embed", "other.x"}
    assert set(made(FILE, {"drop": ["model.layers.#.q.*", "other.*", "nothing"]})) == {
        "model.embed",
        "model.layers.0.k.weight",
        "model.layers.1.k.weight",
    }


def test_rename_puts_parts_in_their_places() -> None:
    found = made(FILE, {"rename": "model.layers.*.q.**", "to": "h.*.query.**"})
    assert found["h.1.query.weight"] is FILE["model.layers.1.q.weight"] and "model.layers.1.q.weight" not in found


def test_rename_counts_on_and_gives_one_name() -> None:
    found = made(
        {f"net.{n}.{leaf}": ONE for n in (2, 10) for leaf in "ab"} | {"net.11.c": TWO},
        {"rename": "net.#.c", "to": "last"},
        {"rename": "net.#.**", "to": "stages.#-2.**"},
    )
    assert set(found) == {"last", *(f"stages.{n}.{leaf}" for n in (0, 8) for leaf in "ab")}


@pytest.mark.parametrize("dim", [0, 1])
def test_stack_and_split_undo_each_other(dim: int) -> None:
    names = [f"model.layers.*.{name}.weight" for name in "qk"]
    stack, split = {"stack": names, "to": "layers.*.qk", "dim": dim}, {"split": "layers.*.qk", "to": names, "dim": dim}
    stacked = made(FILE, stack)
    torch.testing.assert_close(stacked["layers.1.qk"], torch.cat([TWO, ONE], dim))
    assert set(stacked) == {"layers.0.qk", "layers.1.qk", "model.embed", "other.x"}
    back = made(FILE, stack, split)
    assert set(back) == set(FILE)
    for name, value in FILE.items():
        torch.testing.assert_close(back[name], value)


def test_stack_of_numbers_takes_turns() -> None:
    """Ten and more in the order of numbers, not of texts; a name without `#` stands once, where it is listed."""
    file = {f"l.{n}.{part}.w": torch.full((1,), 10.0 * n + k) for n in range(12) for k, part in enumerate("ab")}
    rule = {"stack": ["l.#.a.*", "l.#.b.*", "last.*", "l.#.c.*"], "to": "all.*"}
    file |= {"last.w": torch.full((1,), -1.0)} | {f"l.{n}.c.w": torch.full((1,), 0.5 + n) for n in range(12)}
    expected = [10.0 * n + k for n in range(12) for k in range(2)] + [-1.0] + [0.5 + n for n in range(12)]
    found = made(file, rule)
    assert set(found) == {"all.w"} and found["all.w"].tolist() == expected


def test_experts_by_number() -> None:
    file = {f"layers.{n}.experts.{k}.up": torch.full((2,), 10.0 * n + k) for k in (10, *range(10)) for n in range(2)}
    found = made(file, {"experts": "layers.*.experts.#.up", "to": "layers.*.up"})
    assert set(found) == {"layers.0.up", "layers.1.up"}
    assert found["layers.1.up"][:, 0].tolist() == [10.0 + k for k in range(11)]


def test_a_number_is_one_in_its_plain_form() -> None:
    """Not `01`, which would be the same as `1`, and nothing as long that it is none; a file may claim any, and that takes no time."""
    rule = {"experts": "e.#.x", "to": "x"}
    assert set(made({"e.0.x": ONE, "e.00.x": ONE, f"e.{'9' * 5000}.x": ONE}, rule)) == {
        "x",
        "e.00.x",
        f"e.{'9' * 5000}.x",
    }
    (told_once,) = told({"e.0.x": ONE, "e.999999999.x": ONE}, [rule])
    assert told_once.startswith("missing: `e.1.x` is missing")


@pytest.mark.parametrize("stored", [("embed",), ("head",), ("embed", "head")])
def test_tie_is_one_tensor_whichever_is_stored(stored: tuple[str, ...]) -> None:
    weights = mapped(unread({name: ONE.clone() for name in stored}), [{"tie": "embed", "to": "head"}])
    found = Fit("n", weights, {"embed": (2, 3), "head": (2, 3)}).tensors(dtype=torch.bfloat16)
    assert found["embed"] is found["head"] and torch.equal(found["head"].float(), ONE)


def test_tied_tensors_that_differ_are_refused_when_they_are_read() -> None:
    weights = mapped(unread({"embed": ONE, "head": TWO}), [{"tie": "embed", "to": "head"}])
    fit = Fit("n", weights, {"embed": (2, 3), "head": (2, 3)})
    assert fit.problems() == []
    with pytest.raises(LoadError, match=r"`embed` and `head` of w\.safetensors differ; they are tied"):
        fit.tensors()


def test_transforms() -> None:
    torch.testing.assert_close(made(FILE, {"transform": "other.x", "by": "transpose"})["other.x"], TWO.T)
    patches = made({"conv": torch.arange(24.0).view(2, 3, 2, 2)}, {"transform": "conv", "by": "flatten"})
    torch.testing.assert_close(patches["conv"], torch.arange(24.0).view(2, 12))
    norm = made({"norm": torch.tensor([0.5, -1.0], dtype=torch.bfloat16)}, {"transform": "norm", "by": "add_one"})
    assert norm["norm"].dtype == torch.float32 and norm["norm"].tolist() == [1.5, 0.0]


def test_weight_norm_is_what_torch_makes_of_it() -> None:
    conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 5))
    parts = [f"**.parametrizations.weight.original{n}" for n in (0, 1)]
    file = {f"net.a.{name}": x.detach() for name, x in conv.state_dict().items()}
    found = made(file, {"transform": parts, "by": "weight_norm", "to": "**.weight"})
    torch.testing.assert_close(found["net.a.weight"], conv.weight.detach())
    assert set(found) == {"net.a.weight", "net.a.bias"}


def test_the_binding_knows_the_transforms_that_there_are() -> None:
    assert {name: each.takes for name, each in TRANSFORMS.items()} == _TRANSFORMS and tuple(_RULES) == VERBS


# --- rules that do not fit


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"strip": "modle."}, "rule: rule 2 (`strip: modle.`) fits no tensor: `modle.` is not in w.safetensors"),
        (
            {"rename": "model.layers.*.p.weight", "to": "v.*"},
            "rule: rule 2 (`rename: model.layers.*.p.weight`) fits no tensor: `model.layers.*.p.weight` is not in w.safetensors; "
            "near it: `model.layers.",
        ),
        (
            {"stack": ["model.layers.*.q.weight", "model.layers.*.v.weight"], "to": "qv.*"},
            "missing: `model.layers.0.v.weight` is missing: rule 2 (`stack: [model.layers.*.q.weight, "
            "model.layers.*.v.weight]`) makes `qv.0` of it, which w.safetensors does not have; near it: "
            "`model.layers.0.k.weight` (and 1 like it)",
        ),
        (
            {"split": "model.embed", "to": ["a", "b"], "dim": 1},
            "misshaped: rule 2 (`split: model.embed`): `model.embed` [2, 3]: it has no 2 equal parts along dim 1",
        ),
        (
            {"rename": "model.layers.*.q.weight", "to": "model.layers.*.k.weight"},
            "there are two tensors `model.layers.0.k.weight`, of `model.layers.0.k.weight` [2, 3] and of `model.layers.0.q.weight`",
        ),
        ({"tie": "flat", "to": "other.x"}, "`flat` [2] and `other.x` [2, 3]: they are to be one tensor"),
        (
            {"experts": "deep.#.x", "to": "x"},
            "missing: `deep.0.x` is missing: rule 2 (`experts: deep.#.x`) makes `x` of it",
        ),
        ({"stack": ["deep.#.x", "flat"], "to": "x"}, "missing: `deep.0.x` is missing: rule 2"),
        ({"transform": "flat", "by": "transpose"}, "misshaped: rule 2 (`transform: flat`): `flat` [2]: two dims are"),
        ({"transform": "flat", "by": "flatten"}, "`flat` [2]: two dims or more are flattened"),
        (
            {"transform": ["flat", "model.embed"], "by": "weight_norm", "to": "x"},
            "`flat` [2] and `model.embed` [2, 3]: a length is one number for each row of its direction",
        ),
        (
            {"stack": ["flat", "model.embed"], "to": "x"},
            "`flat` [2] and `model.embed` [2, 3]: they cannot be end to end",
        ),
        (
            {"stack": ["flat", "flat"], "to": "x", "dim": 3},
            "`flat` [2] and `flat` [2]: they cannot be end to end along",
        ),
        ({"experts": "odd.#.x", "to": "x"}, "`odd.0.x` [2, 3] and `odd.1.x` [2]: they differ in shape"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(rule: dict[str, Any], says: str) -> None:
    """And told once: what it was to make is not missing, too, and what it took is not left over."""
    file = {**FILE, "deep.1.x": ONE, "flat": torch.zeros(2), "odd.0.x": ONE, "odd.1.x": torch.zeros(2)}
    problems = told(file, [{"tie": "model.embed", "to": "spare"}, rule], x=(1,), a=(1,), qv__0=(1,), qv__1=(1,))
    said = [each for each in problems if not each.startswith("unused") and "no rule makes it" not in each]
    assert len(said) == 1 and says in said[0]
    optional = told(file, [{"tie": "model.embed", "to": "spare"}, {**rule, "optional": True}])
    assert not any("fits no tensor" in each for each in optional)


def test_what_a_broken_tensor_becomes_is_not_told_again() -> None:
    rules = [
        {"stack": ["model.layers.*.q.weight", "model.layers.*.v.weight"], "to": "qv.*"},
        {"rename": "qv.*", "to": "h.*.qv"},
        {"transform": "h.*.qv", "by": "transpose"},
        {"stack": ["h.#.qv"], "to": "all"},
        {"split": "all", "to": ["a", "b"]},
        {"drop": "model.layers.#.k.*"},
    ]
    assert [each[:30] for each in told(FILE, rules, a=(1,), b=(1,), model__embed=(2, 3), other__x=(2, 3))] == [
        "missing: `model.layers.0.v.wei"
    ]


# --- against parameters


def test_missing_says_which_rule_wants_it_of_what_and_what_is_near() -> None:
    file = {
        "m.layers.0.attn.query.w": ONE,
        "m.layers.0.norm.w": ONE,
        "m.layers.1.norm.w": ONE,
        "m.layers.1.atn.query.w": ONE,
    }
    rules = [{"strip": "m."}, {"rename": "layers.**", "to": "h.**"}, {"rename": "h.*.attn.query.w", "to": "h.*.q"}]
    shapes = {"h__0__q": (2, 3), "h__1__q": (2, 3), "h__0__norm__w": (2, 3), "h__1__norm__w": (2, 3)}
    assert told(file, rules, **shapes) == [
        "missing: `h.1.q` [2, 3] is missing: rule 3 (`rename: h.*.attn.query.w`) makes it of `m.layers.1.attn.query.w`, which "
        "w.safetensors does not have; near it: `m.layers.1.atn.query.w`",
    ], "and that one is not told as unused, too"
    assert told({"wieght": ONE}, [], weight=(2, 3))[0] == (
        "missing: `weight` [2, 3] is missing: w.safetensors does not have it, and no rule makes it; near it: `wieght`"
    )
    assert told({"a": ONE, "b": ONE}, [{"drop": "b"}], a=(2, 3), b=(2, 3)) == [
        "missing: `b` [2, 3] is missing: it would be `b`, which w.safetensors has, and another rule takes away"
    ]


def test_misshaped_says_of_what_it_is_made_and_by_which_rule() -> None:
    rules = [
        {"stack": ["model.layers.*.q.weight", "model.layers.*.k.weight"], "to": "*.qk"},
        {"drop": ["model.embed", "other.x"]},
    ]
    assert told(FILE, rules, **{"0__qk": (4, 3), "1__qk": (5, 3)}) == [
        "misshaped: `1.qk` is [4, 3], not [5, 3]: rule 1 (`stack: [model.layers.*.q.weight, model.layers.*.k.weight]`) makes it of "
        "`model.layers.1.q.weight` [2, 3], `model.layers.1.k.weight` [2, 3] of w.safetensors"
    ]
    assert told({"a": ONE}, [], a=(3, 2)) == ["misshaped: `a` is [2, 3], not [3, 2]: it is `a` [2, 3] of w.safetensors"]
    assert told({"a": ONE.long()}, [], a=(2, 3)) == [
        "misshaped: `a` is a floating-point tensor, and `a` is int64: it is `a` [2, 3] of w.safetensors"
    ]


def test_parts_of_a_stack_whose_sum_is_right() -> None:
    file = {"q": torch.zeros(3, 2), "k": torch.zeros(5, 2)}
    weights = mapped(unread(file), [{"stack": ["q", "k"], "to": "qk"}])
    assert Fit("n", weights, {"qk": (8, 2)}, {"qk": (3, 5)}).problems() == []
    (found,) = Fit("n", weights, {"qk": (8, 2)}, {"qk": (4, 4)}).problems()
    assert found.kind == "misshaped" and found.text.startswith(
        "`qk` has 4 rows of `q`, which has 3: rule 1 (`stack: [q, k]`)"
    )


def test_many_odd_names_are_told_as_one_and_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may hold any names: what is compared with what grows with their number, not with its square."""
    from mstarc_runtime.weights import problems

    compared = 0

    def close(word: str, known: list[str], *args: Any, **settings: Any) -> list[str]:
        nonlocal compared
        compared += len(known)
        return get_close_matches(word, known, *args, **settings)

    monkeypatch.setattr(problems, "get_close_matches", close)
    count = 5000
    names = ["a" * (n % 7) + "x".join(str(n)) + "y" for n in range(count)]
    found = told(dict.fromkeys(names, ONE), [], **{f"h__{n}__{part}": (2, 3) for n in range(3) for part in ("w", "b")})
    assert [each.partition(":")[0] for each in found] == ["missing"] * 2 + ["unused"] * 21
    assert found[-1].endswith(f"(and {count - 21} of other names)") and f"`{names[20]}` " in found[-1]
    assert compared <= count


def test_those_of_all_layers_are_one_problem() -> None:
    shapes = {f"h__{n}__w": (2, 3) for n in range(12)} | {f"h__{n}__b": (3,) for n in range(12)}
    found = told({f"l.{n}.w": ONE for n in range(12)}, [], **shapes)
    assert [each.rpartition(" (")[2] for each in found] == ["and 11 like it)"] * 2, (
        "what is near is one with what is missing"
    )


def test_every_parameter_gets_a_tensor_and_nothing_else_is_read() -> None:
    net, read = nn.Linear(3, 2, device="meta"), list[str]()
    file = {"m.weight": ONE, "m.bias": torch.zeros(2), "rest": TWO}
    weights = mapped(unread(file, read), [{"strip": "m."}, {"drop": "rest"}])
    fit = fit_of(net, weights, "checkpoint `x`")
    assert fit.problems() == [] and read == []
    fill(net, fit)
    assert net.weight.data_ptr() == ONE.data_ptr(), "without a copy"
    assert sorted(read) == ["m.bias", "m.weight"] and not net.weight.requires_grad and not net.training
    with pytest.raises(LoadError, match=r"^checkpoint `x`: `bias` \[2\] is missing: .* \(and 1 more of other kinds\)$"):
        fill(net, fit_of(net, mapped(unread({"weight": ONE, "more": ONE}), []), "checkpoint `x`"))


def test_dtype_by_name() -> None:
    fit = Fit("n", mapped(unread({"a": ONE, "b": ONE}), []), {"a": (2, 3), "b": (2, 3)})
    found = fit.tensors(dtype=lambda name: torch.bfloat16 if name == "a" else torch.float64)
    assert (found["a"].dtype, found["b"].dtype) == (torch.bfloat16, torch.float64)


# --- files


def test_files_in_parts_and_pickled(tmp_path: Path) -> None:
    names = sorted(FILE)
    for place, part in enumerate(("a", "b")):
        save_file({name: FILE[name].clone() for name in names[place::2]}, tmp_path / f"{part}.safetensors")
    index = {"weight_map": {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for folder in ("pickled", "several"):
        (tmp_path / folder).mkdir()
    torch.save(FILE, tmp_path / "pickled" / "pytorch_model.bin")
    for place in range(2):
        torch.save({name: FILE[name] for name in names[place::2]}, tmp_path / "several" / f"{place}.bin")
    index = {"weight_map": {name: f"{place % 2}.bin" for place, name in enumerate(names)}}
    (tmp_path / "several" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    torch.save({"net": FILE, "ema": {"a": ONE}, "epoch": 3, "opt": {"state": {0: ONE}}}, tmp_path / "states.pt")
    for path in (tmp_path, tmp_path / "pickled", tmp_path / "several"):
        found = stored(path)
        assert {name: each.shape for name, each in found.items()} == dict.fromkeys(FILE, (2, 3))
        assert all(torch.equal(each.read(), FILE[name]) for name, each in found.items())
    assert set(stored(tmp_path / "states.pt")) == {"ema/a", *(f"net/{name}" for name in FILE)}
    assert [part.file for part in stored(tmp_path)[names[1]].parts] == ["b.safetensors"]


def test_files_that_are_none(tmp_path: Path) -> None:
    def refused(path: Path, says: str) -> None:
        with pytest.raises(LoadError, match=says):
            stored(path)

    refused(tmp_path, "has neither model.safetensors nor pytorch_model.bin")
    refused(tmp_path / "x.safetensors", r"x\.safetensors cannot be read")
    refused(tmp_path / "x.bin", r"x\.bin cannot be read: it does not exist")
    save_file({"a": ONE}, tmp_path / "good.safetensors")
    good = (tmp_path / "good.safetensors").read_bytes()
    for number, damage in enumerate((b"", b"no tensors", good[:-1], good[:20], good.replace(b"[2,3]", b"[2,4]"))):
        (tmp_path / f"{number}.safetensors").write_bytes(damage)
        refused(tmp_path / f"{number}.safetensors", f"{number}.safetensors cannot be read")
    torch.save({"epoch": 3, "net": {"step": 1}}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", r"x\.pt cannot be read: it holds no state dict")
    (tmp_path / "y.pt").write_bytes(b"no pickle")
    refused(tmp_path / "y.pt", r"y\.pt cannot be read")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 5}')
    refused(tmp_path, r"index\.json cannot be read")
    save_file({"a": ONE}, tmp_path / "again.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "good.safetensors", "b": "again.safetensors"}}'
    )
    refused(tmp_path, "tensor `a` is in again.safetensors and in good.safetensors")


@given(st.integers(0, 400), st.integers(0, 255), st.binary(max_size=3))
def test_a_damaged_header_is_a_load_error_or_one_that_can_be_used(at: int, byte: int, more: bytes) -> None:
    """Bytes of a small file changed and put in: the shapes that it then says are those that can be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        save_file({"layers.0.a": ONE, "b": torch.zeros(3, dtype=torch.bfloat16)}, path)
        whole = path.read_bytes()
        at %= len(whole)
        path.write_bytes(whole[:at] + bytes([byte]) + more + whole[at + 1 :])
        with contextlib.suppress(LoadError):
            for each in stored(path).values():
                with contextlib.suppress(LoadError):
                    assert tuple(each.read().shape) == each.shape


# --- from a binding


class Net:
    """Loads a layer by the rules of its binding."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Any, device: str) -> Net:
        made = cls()
        made.layer = nn.Linear(3, 4, bias=False, device="meta")
        fill(made.layer, fit_of(made.layer, checkpoint.tensors(), "weights of `n`"))
        return made

    layer: nn.Module

    def f(self, x: Any) -> Any:
        return self.layer(x)


def test_from_the_binding_to_the_component(tmp_path: Path) -> None:
    save_file({f"m.{name}.weight": value for name, value in (("q", ONE), ("k", TWO))}, tmp_path / "w.safetensors")
    spec = "model m\nnode n : stateless { op f(x: f32[3]) -> y: f32[4] }\n"
    spec += "walk w(x: f32[3]) { emit n.f(x) as tensor }\nrequest r(x: f32[3]) -> tensor { w(x) }\n"
    binding = f"""
checkpoints: {{w: {{path: {tmp_path}, file: w.safetensors}}}}
components:
  n:
    class: tests.runtime.test_weights.Net
    checkpoint: w
    weights:
      - {{strip: m.}}
      - {{stack: [q.weight, k.weight], to: weight}}
"""
    _, linked = compiled(tmp_path, spec, binding)
    net = load_components(linked, linked.nodes, "cpu")["n"]
    torch.testing.assert_close(net.layer.weight.data, torch.cat([ONE, TWO]))
    wrong = binding.replace("[q.weight, k.weight]", "[q.weight, v.weight]")
    assert wrong != binding
    (tmp_path / "wrong").mkdir()
    _, linked = compiled(tmp_path / "wrong", spec, wrong)
    with pytest.raises(
        LoadError,
        match=r"`n`: `m\.v\.weight` is missing: rule 2 \(`stack: .*`\) makes `weight` of it, which w.safetensors does",
    ):
        load_components(linked, linked.nodes, "cpu")


@pytest.mark.parametrize(
    ("rules", "place", "says"),
    [
        ("5", "weights", "is not a list of rules"),
        ("[{swap: a}]", "{swap: a}", "(rule 1) is not one of strip, drop, rename"),
        ("[{strip: a, drop: b}]", "{strip: a, drop: b}", "(rule 1) has strip and drop; a rule has one of"),
        ("[{strip: a}, {rename: b}]", "{rename: b}", "(rule 2, `rename`) has no `to`"),
        ("[{rename: b, to: c, form: d}]", "form", "unknown key `form`"),
        ("[{stack: q, to: c}]", "stack", "is no list"),
        ("[{stack: [q], to: c}]", "stack", "is not a list of two texts or more"),
        ("[{split: q, to: [a, b], dim: -1}]", "dim", "is below 0"),
        ("[{split: q, to: [a, b], dim: x}]", "dim", "is no number"),
        ("[{transform: q, by: rotate}]", "by", "is not one of transpose, flatten"),
        ("[{transform: [q, k], by: transpose, to: x}]", "transform", "has 2 names, and `transpose` takes 1"),
        ("[{transform: q, by: weight_norm}]", "transform", "has 1 name, and `weight_norm` takes 2"),
        ("[{transform: [q, k], by: weight_norm}]", "{transform: [q, k], by: weight_norm}", "has no `to`"),
        ("[{strip: q, optional: 1}]", "optional", "is no truth value"),
        ("[{drop: q, optional: true}]", "optional", "unknown key `optional`"),
        ("[{drop: []}]", "drop", "is not a list of texts"),
        (
            "[{rename: 'a.*.*', to: 'b.*'}]",
            "{rename: 'a.*.*', to: 'b.*'}",
            "has names that do not have equally many `*`",
        ),
        ("[{tie: 'a.*', to: b}]", "{tie: 'a.*', to: b}", "has names that do not have equally many `*`"),
        ("[{rename: 'a.*', to: 'b.#'}]", "{rename: 'a.*', to: 'b.#'}", "or a `#` in another place"),
        ("[{rename: 'a.#.*', to: 'b.*.#'}]", "{rename: 'a.#.*', to: 'b.*.#'}", "or a `#` in another place"),
        ("[{rename: 'a.#-2', to: 'b.#'}]", "{rename: 'a.#-2', to: 'b.#'}", "counts on from a `#` in what it takes"),
        ("[{experts: 'a.*', to: 'b.*'}]", "{experts: 'a.*', to: 'b.*'}", "does not have one `#`, in what it takes"),
        ("[{stack: ['a.#.#', b], to: x}]", "{stack: ['a.#.#', b], to: x}", "does not have one `#`, in what it takes"),
        ("[{stack: ['a.#', b], to: 'x.#'}]", "{stack: ['a.#', b], to: 'x.#'}", "makes a `#`"),
    ],
)
def test_rules_that_cannot_be_are_findings_at_their_place(rules: str, place: str, says: str) -> None:
    report = Collector()
    text = f"components:\n  n: {{class: a.B, checkpoint: w, weights: {rules}}}\n"
    assert read_binding(SourceFile("m.yaml", text), report) is None
    (found,) = report.findings()
    assert found.rule.code == ("MC901" if "unknown key" in says else "MC902") and says in found.message
    span = found.primary.span
    assert text.encode()[span.start : span.end].decode() == place


def test_all_that_is_wrong_with_rules_is_told_at_once() -> None:
    report = Collector()
    rules = "[{strip: 1}, {rename: a}, {rename: a, too: b}, {split: q, to: [a, b], dim: x, optional: 1}]"
    assert read_binding(SourceFile("m.yaml", f"components: {{n: {{class: a.B, weights: {rules}}}}}\n"), report) is None
    said = [(found.rule.code, found.subject.removeprefix("components.n.weights.")) for found in report.findings()]
    assert said == [
        ("MC902", "0.strip"),
        ("MC902", "1"),
        ("MC902", "2"),
        ("MC901", "too"),
        ("MC902", "3.dim"),
        ("MC902", "3.optional"),
    ]


def test_rules_that_can_be_are_none() -> None:
    report = Collector()
    rules = "[{strip: m., optional: true}, {drop: ['r.**', 's.#']}, {experts: 'l.*.e.#.up', to: 'l.*.up'}"
    rules += ", {split: 'l.*.kv', to: ['l.*.k', 'l.*.v'], dim: 1}, {rename: 'a.#.*', to: 'b.#-1.*'}, {rename: 'a.*.b', to: c}"
    rules += (
        ", {stack: ['n.#.a.*', 'n.#.b.*', 'm.*'], to: 'n.*'}, {transform: ['g.*', 'v.*'], by: weight_norm, to: 'w.*'}]"
    )
    assert (
        read_binding(SourceFile("m.yaml", f"components:\n  n: {{class: a.B, weights: {rules}}}\n"), report) is not None
    )
    assert report.findings() == ()
