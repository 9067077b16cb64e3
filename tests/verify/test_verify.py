"""`mstarc verify`: the stored reference data pass; a changed value, a tensor that nothing reads, a wrong checkpoint do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstarc.cli import main
from mstarc_runtime.verify import MODELS, Golden, Item, Report, Setup, UnusableFolder, items, verify
from mstarc_runtime.verify.run import run_items
from tests.shipped import rules_of

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def setup(model: str, dtype: str = "float32") -> Setup:
    return Setup("cpu", dtype, rules_of(model))


def verified(folder: Path) -> Report:
    """As `mstarc verify FOLDER` does."""
    return verify(folder, setup=setup(folder.name))


@lru_cache
def loaded(model: str) -> tuple[Golden, list[Item]]:
    golden = Golden(GOLDENS / model)
    return golden, items(model, golden, setup(model))


def names(model: str) -> list[str]:
    """The cases of a folder, without loading its weights."""
    document = json.loads((GOLDENS / model / "cases.json").read_text())
    if model == "orpheus":
        prompts = [f"lm.{row['index']}" for row in document["lm"]["prompts"]]
        layouts = [f"layout.{case['name']}" for case in document["layout"]["cases"]]
        return [*prompts, "lm.together", *layouts, "snac.f1", "snac.f4", "snac.f7", "stream"]
    listed = [case["name"] for case in document["cases"]]
    if model == "whisper":
        return ["mel", "encoder", *(f"dec.{name}" for name in listed), "dec.together", "short"]
    return listed


def ran(chosen: list[Item], model: str, loose: float = 0.0) -> Report:
    report = Report(model, loose)
    run_items(chosen, report)
    return report


def failures(report: Report) -> list[str]:
    return [line for line in report.lines() if line.startswith("FAIL")]


@pytest.mark.parametrize(("model", "name"), [(model, name) for model in MODELS for name in names(model)])
def test_equals_the_reference(model: str, name: str) -> None:
    _, found = loaded(model)
    report = ran([item for item in found if item.name == name], model)
    assert report.checks and report.passed, failures(report)


@pytest.mark.parametrize("model", MODELS)
def test_every_case_and_every_tensor_is_read(model: str) -> None:
    report = verified(GOLDENS / model)
    assert report.passed, failures(report)
    _, found = loaded(model)
    assert [item.name for item in found] == names(model)


@pytest.mark.parametrize("model", MODELS)
def test_half_precision_is_within_the_stated_tolerance(model: str) -> None:
    report = verify(GOLDENS / model, setup=setup(model, "bfloat16"))
    assert report.passed, failures(report)


# --- what must fail


def outputs(golden: Golden, model: str) -> list[str]:
    """Tensors that are results, not inputs."""
    if model in ("orpheus", "whisper"):
        inputs: tuple[str, ...] = ("input_ids", "codes0", "codes1", "codes2", "noise0", "noise1", "noise2", "noise3")
        inputs += ("stream.tokens", "waveform", "prompt")
        return [name for name in sorted(golden._tensors) if not name.endswith(inputs)]
    cases = golden.listed()
    return sorted({tensor for case in cases for tensor in case.outputs.values()})


def changed(tensor: Tensor) -> Tensor:
    """Other values: off by a hundredth of the largest, or by one (by three where one is allowed)."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        return tensor + 0.01 * tensor.abs().max()
    return tensor - (3 if tensor.dtype == torch.int16 else 1)


def readers(found: list[Item], name: str) -> list[Item]:
    """The cases that may read a tensor, so that not all are run for each."""
    if name.startswith(("mel", "short")):
        return [item for item in found if item.name in ("mel", "encoder", "short")]
    case = name.split("/")[0] if "/" in name else ".".join(name.split(".")[:2])
    return [item for item in found if item.name in (case, case.split(".")[0])] or found


@pytest.mark.parametrize("model", MODELS)
def test_a_changed_value_of_any_output_fails(model: str) -> None:
    """Every stored result is compared: each is changed in turn, and a case that reads it must fail."""
    golden, found = loaded(model)
    for name in outputs(golden, model):
        kept = golden._tensors[name]
        golden._tensors[name] = changed(kept)
        try:
            assert not ran(readers(found, name), model).passed, f"{name} can be changed unnoticed"
        finally:
            golden._tensors[name] = kept


def copied(model: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / model, folder / model))


@pytest.mark.parametrize("model", MODELS)
def test_a_tensor_that_nothing_reads_fails(tmp_path: Path, model: str) -> None:
    folder = copied(model, tmp_path)
    tensors = load_file(folder / "cases.safetensors")
    save_file({**tensors, "later/result": torch.zeros(1)}, folder / "cases.safetensors")
    report = verified(folder)
    assert [check.case for check in report.checks if not check.passed] == ["later/result"]


def test_nan_is_no_small_error() -> None:
    report = Report("x")
    report.close("c", "w", torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), 1e-4)
    assert not report.passed and json.dumps(report.document(), allow_nan=False)
    assert not Report("x").passed  # nothing compared is nothing shown


def test_near_ties_are_forgiven_in_half_precision_only() -> None:
    scores = torch.tensor([[1.0, 0.99, 0.5]])
    for drawn, exact, half in ((1, False, True), (2, False, True), (0, True, True)):
        for loose, passed in ((0.0, exact), (0.3, half)):
            report = Report("orpheus", loose)
            report.ids("c", "w", [drawn], scores, [0])
            assert report.passed == passed
    report = Report("orpheus", 0.03)
    report.ids("c", "w", [0], scores, [2])
    assert not report.passed


# --- checkpoints and folders that cannot be used

WRONG: list[tuple[str, str, Callable[[dict[str, Tensor]], Any], str]] = [
    (
        "orpheus",
        "model.safetensors",
        lambda t: t.pop("model.norm.weight"),
        "`model.norm.weight` is not in model.safetensors",
    ),
    (
        "orpheus",
        "model.safetensors",
        lambda t: t.update({"model.extra.weight": torch.zeros(1)}),
        "`model.extra.weight` [1] of model.safetensors is not used",
    ),
    (
        "orpheus",
        "snac/model.safetensors",
        lambda t: t.pop("decoder.model.6.alpha"),
        "`decoder.model.#.alpha` is not in model.safetensors",
    ),
    (
        "pi05",
        "model.safetensors",
        lambda t: t.update({"time_mlp_in.bias": torch.zeros(3)}),
        "`expert.time_in.bias` is [3], not",
    ),
    (
        "vjepa2",
        "model.safetensors",
        lambda t: t.pop("encoder.layernorm.bias"),
        "`encoder.layernorm.bias`, which model.safetensors does not have",
    ),
    ("whisper", "model.safetensors", lambda t: t.pop("model.encoder.conv1.bias"), "`model.encoder.conv1.bias`, which"),
]


@pytest.mark.parametrize(("model", "file", "change", "message"), WRONG)
def test_a_wrong_checkpoint_is_named(
    tmp_path: Path, model: str, file: str, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    folder = copied(model, tmp_path)
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)
    with pytest.raises(UnusableFolder) as caught:
        verified(folder)
    assert message in str(caught.value)


def broken(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / "cases.json").read_text())
    edit(document)
    (folder / "cases.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("model", "edit", "message"),
    [
        ("pi05", lambda d: d.pop("cases"), "no list `cases`"),
        ("pi05", lambda d: d["cases"][0].update(outputs={"x": "y"}), "case `vision` gives none of"),
        ("vjepa2_ac", lambda d: d["cases"][0].update(outputs={}, inputs={}), "is of no kind"),
        ("whisper", lambda d: d.pop("ids"), "not laid out as that of `whisper`"),
    ],
)
def test_a_document_that_is_no_document(
    tmp_path: Path, model: str, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    folder = copied(model, tmp_path)
    broken(folder, edit)
    with pytest.raises(UnusableFolder, match=message):
        verified(folder)


def test_a_case_whose_tensor_is_missing_fails_alone(tmp_path: Path) -> None:
    folder = copied("vjepa2", tmp_path)
    broken(folder, lambda d: d["cases"][0]["inputs"].update(pixel_values_videos="gone"))
    report = verified(folder)
    assert {check.case for check in report.checks if not check.passed} >= {"encode"}
    assert any("no tensor `gone`" in check.note for check in report.checks)


# --- the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(GOLDENS / "vjepa2")
    assert main(["verify", folder]) == 0
    shown = capsys.readouterr()
    assert "encode" in shown.out and " of 1e-04" in shown.out and "all within tolerance" in shown.err
    assert main(["verify", folder, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] and document["device"] == "cpu" and document["dtype"] == "float32"
    other = tmp_path / "other"
    shutil.copytree(GOLDENS / "vjepa2", other)
    assert main(["verify", str(other)]) == 2
    assert "no verification of a model `other`; say which with --model" in capsys.readouterr().err
    assert main(["verify", str(other), "--model", "vjepa2"]) == 0
    tensors = load_file(other / "cases.safetensors")
    save_file(
        {**tensors, "encode/last_hidden_state": tensors["encode/last_hidden_state"] * 1.01}, other / "cases.safetensors"
    )
    capsys.readouterr()
    assert main(["verify", str(other), "--model", "vjepa2"]) == 1
    assert "FAIL encode" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "`nowhere` does not exist"),
        ([str(GOLDENS / "vjepa2" / "config.json")], "is a file"),
        ([str(GOLDENS / "speech"), "--model", "whisper"], "cases.json cannot be read"),
        ([str(GOLDENS / "vjepa2"), "--model", "bert"], "no verification of a model `bert`"),
        ([str(GOLDENS / "vjepa2"), "--device", "tpu"], "`tpu` is no device"),
        ([str(GOLDENS / "vjepa2"), "--model", "vjepa2_ac"], "model_type is 'vjepa2', not 'vjepa2_ac'|config.json"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_used(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *args]) == 2
    error = capsys.readouterr().err
    assert any(part in error for part in message.split("|")), error


def test_a_binding_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mstarc.cli.verifying.SPECS", (tmp_path,))
    assert main(["verify", str(GOLDENS / "vjepa2")]) == 2
    assert "there is no binding of `vjepa2`, which says how weights are mapped" in capsys.readouterr().err
    (tmp_path / "vjepa2.yaml").write_text("components: [\n")
    assert main(["verify", str(GOLDENS / "vjepa2")]) == 2
    assert "error[MC906]" in (shown := capsys.readouterr().err) and "vjepa2.yaml cannot be read" in shown


# --- folders of other sizes


def published(ids: Tensor, model: Any, count: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Raw logits and greedy ids of transformers' Llama, without a cache; the penalty is over prompt and produced ids."""
    raw, produced = [], ids
    for _ in range(count):
        logits = model(produced[None]).logits[0, -1]
        raw.append(logits)
        seen = sorted(set(produced.tolist()))
        scores = logits.clone()
        scores[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        produced = torch.cat([produced, scores.argmax()[None]])
    return torch.stack(raw), produced[len(ids) :]


@torch.inference_mode()
def test_a_language_model_of_other_sizes(tmp_path: Path) -> None:
    """Another vocabulary, width, depth and head, no tied embeddings; another number of prompts, another penalty, no stop case."""
    transformers = pytest.importorskip("transformers")
    folder = copied("orpheus", tmp_path)
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=301, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=16, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    kept = load_file(folder / "cases.safetensors")
    tensors = {name: tensor for name, tensor in kept.items() if not name.startswith("lm.")}
    for n, length in enumerate((3, 30)):
        ids = torch.randint(301, (length,))
        out = model(ids[None], output_hidden_states=True)
        raw, produced = published(ids, model, 12, 1.15)
        tensors |= {
            f"lm.{n}.input_ids": ids,
            f"lm.{n}.prefill_logits": out.logits[0],
            f"lm.{n}.last_hidden": out.hidden_states[-1][0],
            f"lm.{n}.generated_pen1.15": produced,
            f"lm.{n}.generated_logits_pen1.15": raw,
        }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "cases.safetensors")
    broken(folder, lambda d: d.pop("lm"))
    report = verified(folder)
    assert report.passed, failures(report)
    assert {"lm.0", "lm.1"} <= {check.case for check in report.checks}
    tensors["lm.1.generated_pen1.15"] = tensors["lm.1.generated_pen1.15"].roll(1)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "cases.safetensors")
    assert not verified(folder).passed
