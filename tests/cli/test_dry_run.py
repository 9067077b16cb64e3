"""`mstarc check SPEC --checkpoint NAME=PATH`: headers of weight files against the shipped components, and what is said of each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mstarc.cli import main
from mstarc_runtime.weights import stored

ROOT = Path(__file__).resolve().parents[2]
SPECS, GOLDENS = ROOT / "specs", ROOT / "tests" / "goldens"


def given(**checkpoints: Path) -> list[str]:
    return [f"--checkpoint={name}={path}" for name, path in checkpoints.items()]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a tensor of a safetensors file fails."""

    def opened(path: Path) -> Any:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr("mstarc_runtime.weights.files._opened", opened)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("model", "checkpoints", "nodes"),
    [
        ("pi05", {"pi05": "pi05"}, ["vit", "llm"]),
        ("orpheus", {"orpheus": "orpheus", "snac": "orpheus/snac"}, ["llm", "snac"]),
        ("vjepa2", {"vjepa2": "vjepa2"}, ["encoder", "predictor"]),
        ("vjepa2_ac", {"vjepa2_ac": "vjepa2_ac"}, ["encoder", "predictor"]),
        ("whisper", {"whisper": "whisper"}, ["ears", "scribe"]),
    ],
)
def test_reference_checkpoints_fit_and_are_not_read(
    model: str, checkpoints: Mapping[str, str], nodes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: GOLDENS / folder for name, folder in checkpoints.items()}
    assert main(["check", str(SPECS / f"{model}.walk"), *given(**paths)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [*nodes, "1 model clean"]
    assert all(" parameters of " in line for line in lines[:-1])


def sparse(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of bf16 tensors whose data are a hole."""
    header, at = dict[str, Any](), 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def published(folder: Path) -> dict[str, tuple[int, ...]]:
    """The 3 B of Orpheus in two files: names, shapes and config.json as published, no data."""
    config = {
        "model_type": "llama", "vocab_size": 156940, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (156940, 3072), "norm": (3072,)}
    for n in range(28):
        rows = {"q_proj": (3072, 3072), "k_proj": (1024, 3072), "v_proj": (1024, 3072), "o_proj": (3072, 3072)}
        shapes |= {f"layers.{n}.self_attn.{name}": shape for name, shape in rows.items()}
        shapes |= {f"layers.{n}.mlp.{name}": (8192, 3072) for name in ("gate_proj", "up_proj")}
        shapes |= {f"layers.{n}.mlp.down_proj": (3072, 8192)}
        shapes |= {f"layers.{n}.{name}": (3072,) for name in ("input_layernorm", "post_attention_layernorm")}
    return {f"model.{name}.weight": shape for name, shape in shapes.items()}


def written(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    names = list(shapes)
    where = {name: f"part-{2 * place // len(names)}.safetensors" for place, name in enumerate(names)}
    for part in set(where.values()):
        sparse(folder / part, {name: shapes[name] for name in names if where[name] == part})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.mark.usefixtures("unread")
def test_three_billion_parameters_without_their_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, published(tmp_path))
    assert sum(torch.Size(each.shape or ()).numel() for each in stored(folder).values()) > 3.2e9
    assert main(["check", str(SPECS / "orpheus.walk"), *given(orpheus=folder)]) == 0
    assert "llm: 171 parameters of 254 tensors" in capsys.readouterr().err


@pytest.mark.usefixtures("unread")
def test_every_mistake_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is misspelt in all layers, one layer too many, a stack with an odd part: three findings, at their rules."""
    shapes = published(tmp_path)
    shapes = {name.replace("up_proj", "upp_proj"): shape for name, shape in shapes.items()}
    shapes |= {f"model.layers.{n}.self_attn.k_proj.weight": (512, 3072) for n in range(28)}
    shapes |= {"model.layers.28.input_layernorm.weight": (3072,)}
    folder = written(tmp_path, shapes)
    assert main(["check", str(SPECS / "orpheus.walk"), "--format", "json", *given(orpheus=folder)]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    yaml = (SPECS / "orpheus.yaml").read_text().splitlines()
    said = [(each["code"], yaml[each["spans"][0]["line_start"] - 1].strip(" -"), each["message"]) for each in found]
    stack, pair, norm = said
    assert stack[0] == "MC912" and stack[1].startswith("stack: [layers.*.self_attn.q_proj.weight")
    assert "`0.qkv` is [4608, 3072], not [5120, 3072]" in stack[2] and "(and 27 like it)" in stack[2]
    assert pair[0] == "MC910" and pair[1].startswith("{stack: [layers.*.mlp.gate_proj.weight")
    assert "`model.layers.0.mlp.up_proj.weight` is missing" in pair[2] and "(and 27 like it)" in pair[2]
    assert "near it: `model.layers.0.mlp.upp_proj.weight`" in pair[2], "which is not told as unused, too"
    assert norm[0] == "MC911" and norm[1].startswith("{rename: layers.*.input_layernorm.weight")
    assert "`model.layers.28.input_layernorm.weight` [3072] of part-" in norm[2]


def test_what_the_headers_say_is_what_a_load_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mstarc_runtime.engines.component import Checkpoint
    from mstarc_runtime.errors import LoadError
    from mstarc_runtime.models.vjepa2.components import Encoder
    from tests.shipped import loader

    tensors = load_file(GOLDENS / "vjepa2" / "model.safetensors")
    tensors["encoder.layernorm.weight"] = tensors["encoder.layernorm.weight"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((GOLDENS / "vjepa2" / "config.json").read_bytes())
    assert main(["check", str(SPECS / "vjepa2.walk"), *given(vjepa2=tmp_path)]) == 1
    shown = capsys.readouterr().err
    with pytest.raises(LoadError) as caught:
        loader("vjepa2")(Encoder, Checkpoint(path=tmp_path), {})
    text = str(caught.value).partition(": ")[2]
    assert text.startswith("`norm.weight` is [63], not [64]") and f"error[MC912]: `encoder`: {text}" in shown
    assert "1 error" in shown


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--checkpoint=orfeus=."], "no spec here has a checkpoint `orfeus`"),
        (["--checkpoint=orpheus=nowhere"], "checkpoint `orpheus`: `nowhere` does not exist"),
        (["--checkpoint=orpheus"], "is not of the form"),
    ],
)
def test_what_is_not_of_the_form_or_not_there(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SPECS / "orpheus.walk"), *args]) == 2
    assert says in capsys.readouterr().err


def test_files_that_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((GOLDENS / "vjepa2" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((GOLDENS / "vjepa2" / "model.safetensors").read_bytes()[:-1])
    assert main(["check", str(SPECS / "vjepa2.walk"), *given(vjepa2=tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert shown.count("error[MC914]") == 2 and "model.safetensors cannot be read" in shown


@pytest.mark.parametrize(
    ("parts", "says", "key"),
    [
        ("class Heads: pass", "`parts.Head`: `parts` has no `Head`; did you mean `Heads`?", "class: parts.Head"),
        ("import nothing_like_it", "`parts.Head`: importing `parts.Head` failed: No module named", "class: parts.Head"),
        (
            "class Head:\n    @classmethod\n    def fit(cls, checkpoint, config):\n        return config['width']\n",
            "`parts.Head.fit` failed: KeyError: 'width'",
            "class: parts.Head",
        ),
        (
            "class Head:\n    @classmethod\n    def fit(cls, checkpoint, config):\n        return checkpoint.tensors()\n",
            "has neither model.safetensors nor",
            "checkpoint: head",
        ),
    ],
)
def test_what_cannot_be_found_out_is_told_at_the_key_it_is_about(
    parts: str,
    says: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(parts)
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.walk").write_text(
        "model m\nnode head : stateless { op f(x: i64) -> y: i64 }\n"
        "walk w(x: i64) { emit head.f(x) as tensor }\nrequest r(x: i64) -> tensor { w(x) }\n"
    )
    yaml = "checkpoints:\n  head: {path: empty}\ncomponents:\n  head:\n    class: parts.Head\n    checkpoint: head\n"
    (tmp_path / "m.yaml").write_text(yaml)
    assert main(["check", "m.walk", "--format", "json", *given(head=tmp_path / "empty")]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["code"] == "MC914" and says in found["message"]
    assert yaml.splitlines()[found["spans"][0]["line_start"] - 1].strip() == key


@pytest.mark.parametrize(
    ("name", "shape"),
    [("\ud800", [0]), ("x\x1b[2J", [0]), ("x\ny", [0]), ("x", [-1, 0]), ("x", [0.0]), ("x", [0, True]), ("x", [[0]])],
)
@pytest.mark.parametrize("format", ["text", "json"])
def test_headers_with_odd_names_and_counts(
    name: str, shape: Any, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are damage, and no finding repeats them as they are."""
    (tmp_path / "config.json").write_bytes((GOLDENS / "vjepa2" / "config.json").read_bytes())
    header = json.dumps({name: {"dtype": "F4", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert main(["check", str(SPECS / "vjepa2.walk"), "--format", format, *given(vjepa2=tmp_path)]) == 1
    told = "".join(capsys.readouterr())
    assert told.count("MC914") >= 2 and "model.safetensors cannot be read" in told
    assert told.replace("\n", "").isprintable()


def test_a_component_that_reads_its_files_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SPECS / "ask.walk"), *given(hibari=GOLDENS)]) == 0
    assert "voice: mstarc_runtime.models.hibari.voice.Voice reads its files itself" in capsys.readouterr().err


def test_a_spec_with_errors_is_not_held_against_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("walk", "yaml"):
        (tmp_path / f"vjepa2.{suffix}").write_bytes((SPECS / f"vjepa2.{suffix}").read_bytes())
    with (tmp_path / "vjepa2.walk").open("a") as file:
        file.write("walk w( {\n")
    assert main(["check", str(tmp_path), *given(vjepa2=GOLDENS)]) == 1
    assert "MC91" not in capsys.readouterr().err


def test_without_torch_it_says_what_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; from mstarc.cli import main; sys.exit(main(sys.argv[1:]))"
    args = ["check", str(SPECS / "whisper.walk"), *given(whisper=GOLDENS / "whisper")]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "the package `torch`, which is not installed" in done.stderr, done.stderr
    assert "pip install" in done.stderr and "Traceback" not in done.stderr
