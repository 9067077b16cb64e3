"""The SNAC codec against the stored reference (tests/goldens/orpheus): decode, windows, batches, ids out of place; its loader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstarc_runtime.arrays import TorchArrays
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.orpheus.snac import Snac
from mstarc_runtime.sampling.op_noise import OpNoise
from mstarc_runtime.sampling.philox import DrawKey
from tests.shipped import loader

load = loader("orpheus")

FOLDER = Path(__file__).parents[1] / "goldens" / "orpheus"
CODEC = FOLDER / "snac"
NODE = {"first_id": 128266}
TENSORS = load_file(FOLDER / "cases.safetensors")
LAYOUT = {case["name"]: case for case in json.loads((FOLDER / "cases.json").read_text())["layout"]["cases"]}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def snac() -> Snac:
    return load(Snac, Checkpoint(path=CODEC), NODE, "cpu")


def noise_of(*seeds: int) -> OpNoise:
    return OpNoise(TorchArrays("cpu"), [DrawKey(seed, "vocode/decode", 0) for seed in seeds], True)


def windows() -> Tensor:
    return TENSORS["stream.tokens"].unfold(0, 28, 7).contiguous()


# --- ids and windows


def test_levels_of_a_window(snac: Snac) -> None:
    case = LAYOUT["aligned4"]
    codes, good = snac.codes(torch.tensor([case["tokens"]]))
    assert [level[0].tolist() for level in codes] == [case["level0"], case["level1"], case["level2"]]
    assert good.tolist() == [True]


def test_every_code_of_a_level_may_come(snac: Snac) -> None:
    tokens = torch.tensor(LAYOUT["all_4095"]["tokens"])[None, :28]
    codes, good = snac.codes(tokens)
    assert good.all() and all((level == 4095).all() for level in codes)
    codes, good = snac.codes(tokens - 4095)
    assert good.all() and not any(level.any() for level in codes)


def test_an_id_out_of_place_silences_its_window_alone(snac: Snac) -> None:
    """Too low, too high, and of the next place; the windows beside it in the batch are as they were."""
    batch = windows()[[0, 1, 2, 3]]
    wanted = snac.windows(batch, None)
    batch[0, 5], batch[1, 0], batch[3, 27] = batch[0, 6], 128258, batch[3, 27] + 4096
    got = snac.windows(batch, None)
    assert not got[[0, 1, 3]].any() and torch.equal(got[2], wanted[2])


@pytest.mark.parametrize("lowest", [0, 1])
def test_frames_that_a_short_model_cannot_make(lowest: int) -> None:
    """A codec whose levels do not make 7 ids a frame is refused."""
    config = {**json.loads((CODEC / "config.json").read_text()), "latent_dim": 64, "vq_strides": [2, 1][lowest:]}
    with pytest.raises(LoadError, match="do not make frames of 7 ids"):
        load(Snac, Checkpoint(), {**NODE, **config}, "cpu")


def test_a_batch_is_its_windows_alone(snac: Snac) -> None:
    together = snac.decode(noise_of(1, 2, 3), windows()[:3])
    for k in range(3):
        alone = snac.decode(noise_of(k + 1), windows()[k : k + 1])
        assert (together[k] - alone[0]).abs().max() <= 1e-6
    assert (together[0] - snac.decode(noise_of(9), windows()[:1])[0]).abs().max() > 1e-3


def test_without_noise_the_codec_draws_nothing(snac: Snac) -> None:
    quiet = load(Snac, Checkpoint(path=CODEC), {**NODE, "noise": False}, "cpu")

    class Never:
        def normal(self, *shape: int) -> Tensor:
            raise AssertionError("drawn")

    assert torch.equal(quiet.decode(Never(), windows()), snac.windows(windows(), None))


# --- loading


def saved(folder: Path, tensors: dict[str, Tensor]) -> Checkpoint:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    shutil.copy(CODEC / "config.json", folder)
    return Checkpoint(path=folder)


UP, CODES = "decoder.model.3.block.1", "quantizer.quantizers.1.codebook.weight"
G, V = "parametrizations.weight.original0", "parametrizations.weight.original1"
WRONG: list[tuple[str, Callable[[Tensor], Tensor] | None, str]] = [
    (f"{UP}.{G}", None, rf"`{UP}\.{G}` is missing: rule 2 .* makes `{UP}\.weight` of it"),
    (f"{UP}.{V}", lambda t: t[:, :11], r"`stages\.1\.up\.weight` is \[24, 11, 16\], not \[24, 12, 16\]"),
    (
        f"{UP}.{G}",
        lambda t: t.reshape(1, 24, 1),
        r"original0` \[1, 24, 1\] and .*: a length is one number for each row",
    ),
    (CODES, lambda t: t[:4095], r"codebooks\.1\.weight` is \[4095, 8\], not \[4096, 8\]: rule 3"),
    (CODES, lambda t: t.long(), r"codebook\.weight` is int64"),
    (
        "decoder.model.2.block.2.linear.bias",
        lambda t: t,
        r"`decoder\.model\.2\.block\.2\.linear\.bias` \[1\] of model\.safetensors is not used",
    ),
    (
        "decoder.model.8.alpha",
        lambda t: t,
        r"two tensors `snake\.alpha`, of `decoder\.model\.6\.alpha` .* and of `decoder\.model\.8\.alpha` \[1\]",
    ),
    ("lm_head.weight", lambda t: t, r"`lm_head\.weight` \[1\] of model\.safetensors is not used"),
]


@pytest.mark.parametrize(("key", "make", "message"), WRONG)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, key: str, make: Callable[[Tensor], Tensor] | None, message: str
) -> None:
    tensors = load_file(CODEC / "model.safetensors")
    old = tensors.pop(key, torch.zeros(1))
    if make is not None:
        tensors[key] = make(old)
    with pytest.raises(LoadError, match=message):
        load(Snac, saved(tmp_path, tensors), NODE, "cpu")


def test_the_published_file_is_a_pickled_state_dict(tmp_path: Path, snac: Snac) -> None:
    torch.save(load_file(CODEC / "model.safetensors"), tmp_path / "pytorch_model.bin")
    shutil.copy(CODEC / "config.json", tmp_path)
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        other = load(Snac, Checkpoint(path=path), NODE, "cpu")
        assert torch.equal(other.windows(windows(), None), snac.windows(windows(), None))
    (tmp_path / "pytorch_model.bin").write_bytes(b"no tensors")
    with pytest.raises(LoadError, match=r"pytorch_model\.bin cannot be read"):
        load(Snac, Checkpoint(path=tmp_path), NODE, "cpu")
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(LoadError, match=r"has neither model\.safetensors nor pytorch_model\.bin"):
        load(Snac, Checkpoint(path=tmp_path), NODE, "cpu")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"noise": False}, "`noise` is False, and only True is built"),
        ({"attn_window_size": 32}, "`attn_window_size` is 32"),
        ({"depthwise": False}, "`depthwise` is False"),
        ({"decoder_dim": 40}, "40 channels cannot be halved 4 times"),
        ({"decoder_rates": "8842"}, "`decoder_rates` is '8842', not a list of counts"),
        ({"vq_strides": [4, 3, 1]}, "do not divide"),
        ({"encoder_dim": None}, "`encoder_dim` is None, not a positive count"),
        ({"decoder_dim": 64}, r"`wide\.weight` is \[48, 64, 1\], not \[64, 64, 1\]"),
    ],
)
def test_a_wrong_config_is_named(tmp_path: Path, edit: dict[str, Any], message: str) -> None:
    shutil.copy(CODEC / "model.safetensors", tmp_path)
    config = json.loads((CODEC / "config.json").read_text()) | edit
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=message):
        load(Snac, Checkpoint(path=tmp_path), NODE, "cpu")


@pytest.mark.parametrize("node", [{}, {"first_id": -1}, {"first_id": True}, {"first_id": 5, "noise": 0.5}])
def test_a_wrong_section_is_named(node: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=r"SNAC: `(first_id|noise)` of the node is"):
        load(Snac, Checkpoint(path=CODEC), node, "cpu")


def test_sizes_for_the_linker() -> None:
    """The keys of the shipped binding, with the checkpoint's values."""
    values = Snac.config_values(Checkpoint(path=CODEC), {})
    assert values["latent_dim"] == 64 and values["decoder_rates"] == [8, 8, 4, 2] and values["codebooks"] == 3


def test_random_weights_of_the_published_size_run() -> None:
    from ruamel.yaml import YAML

    section = YAML(typ="safe").load((FOLDER.parents[2] / "specs" / "orpheus.yaml").read_text())["config"]["snac"]
    big = load(Snac, Checkpoint(), section, "cpu")
    assert sum(p.numel() for p in big.net.parameters()) == pytest.approx(13.0e6, rel=0.05)
    heard = big.decode(noise_of(0), windows()[:1])
    assert heard.shape == (1, 2048) and heard.isfinite().all()
