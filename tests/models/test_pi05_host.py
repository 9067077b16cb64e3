"""Host side of pi0.5: state bins, prompts, token ids, camera images, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from mstarc_runtime.abi.levels import Levels
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.pi05.host import Pi05Host
from mstarc_runtime.models.pi05.images import pixels
from mstarc_runtime.models.pi05.robot import normalise, prompt_text, state_bins, unnormalise
from mstarc_runtime.program import Part
from tests.models.vjepa2_cases import Cases

GOLDEN = Cases("pi05")
EXPECT = GOLDEN.cases["state_prompt"]["expect"]
CHECKPOINT = Checkpoint(path=GOLDEN.folder)


# --- robot numbers and prompt text


@pytest.mark.parametrize("row", EXPECT["rows"], ids=lambda row: row["task"].strip()[:8])
def test_prompt_equals_the_reference(row: dict[str, Any]) -> None:
    assert state_bins(row["normalized_state"]).tolist() == row["bins"]
    assert prompt_text(row["task"], row["normalized_state"]) == row["prompt"]
    padded = row["normalized_state"] + [0.0, 0.0]
    assert prompt_text(row["task"], padded) == row["prompt_if_state_is_zero_padded_to_max_state_dim"]


def test_quantiles_equal_the_reference() -> None:
    quantile = EXPECT["quantile"]
    raw = GOLDEN.tensor("state_prompt", "raw_state").numpy()
    got = normalise(raw, quantile["q01"], quantile["q99"])
    assert np.abs(got - GOLDEN.tensor("state_prompt", "normalized_state").numpy()).max() <= 1e-6
    assert prompt_text("go", got) == quantile["prompt"]
    low, high = (GOLDEN.tensor("state_prompt", name).numpy() for name in ("action_q01", "action_q99"))
    actions = unnormalise(GOLDEN.tensor("state_prompt", "actions_normalized").numpy(), low, high)
    wanted = GOLDEN.tensor("state_prompt", "actions_robot_units").numpy()
    assert actions.shape == wanted.shape and np.abs(actions - wanted).max() <= 1e-6
    assert np.allclose(
        normalise(actions, low, high), GOLDEN.tensor("state_prompt", "actions_normalized")[..., :7], atol=1e-5
    )


def test_a_number_that_never_changed() -> None:
    assert normalise([2.0], [2.0], [2.0]).tolist() == [-1.0]


# --- images


@pytest.mark.parametrize("index", [0, 1])
def test_images_equal_the_reference(index: int) -> None:
    """A wide and a tall image."""
    got = pixels(GOLDEN.tensor("image_preprocess", f"image_u8_{index}").numpy(), 56)
    assert np.abs(got - GOLDEN.tensor("image_preprocess", f"pixels_{index}")[0].numpy()).max() <= 1e-5


@pytest.mark.parametrize("size", [(56, 56), (20, 31), (224, 1), (480, 640), (113, 200)])
def test_resize_equals_interpolate(size: tuple[int, int]) -> None:
    """Against torch's bilinear resize without antialias; the rest is padding."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    got = torch.from_numpy(pixels(image, 56))
    ratio = max(size) / 56
    rows, columns = max(1, int(size[0] / ratio)), max(1, int(size[1] / ratio))
    scaled = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255 * 2 - 1
    wanted = torch.nn.functional.interpolate(scaled, (rows, columns), mode="bilinear", align_corners=False)[0]
    top, left = (56 - rows) // 2, (56 - columns) // 2
    assert (got[:, top : top + rows, left : left + columns] - wanted).abs().max() <= 1e-5
    got[:, top : top + rows, left : left + columns] = -1
    assert (got == -1).all()


# --- the externs


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Pi05Host:
    """The golden's sizes (56 px, 24 tokens, 8 numbers) and a tokenizer of single characters that would add <bos> by itself."""
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {chr(code): code for code in (10, *range(32, 127))}
    tokenizer = Tokenizer(WordLevel(letters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<bos>", "<eos>")])
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Pi05Host.load({"pi05": CHECKPOINT, "tokenizer": Checkpoint(path=folder)}, {})


def text_of(ids: np.ndarray[Any, Any]) -> str:
    assert ids.dtype == np.int64 and ids[0] == 1 and 1 not in ids[1:]
    return "".join(chr(code) for code in ids[1:])


def long(host: Pi05Host, **quantiles: list[float]) -> Pi05Host:
    """With room for whole prompts of characters (the sizes of the published model), and quantiles."""
    checkpoints = {"tokenizer": host._checkpoints["tokenizer"]}
    return Pi05Host.load(checkpoints, {"llm": quantiles})


def test_prompt_ids(host: Pi05Host) -> None:
    wide = long(host)
    row = EXPECT["rows"][1]
    assert text_of(wide.prompt(row["task"], np.asarray(row["normalized_state"], np.float32))) == row["prompt"]
    assert text_of(wide.prompt(row["task"])) == "fold the towel now\n"
    assert text_of(wide.prompt("say <eos>", [0.0])) == "Task: say <eos>, State: 128;\nAction: "  # a task is text
    cut = host.prompt("fold the towel", [0.0])
    assert len(cut) == 24 and text_of(cut) == "Task: fold the towel, S"


def test_prompt_in_robot_units(host: Pi05Host) -> None:
    quantile = EXPECT["quantile"]
    robot = long(host, state_q01=quantile["q01"], state_q99=quantile["q99"])
    assert text_of(robot.prompt("go", quantile["raw_state"])) == quantile["prompt"]
    with pytest.raises(BadRequest, match="has 2 numbers, the robot's data has 6") as caught:
        robot.prompt("go", [1.0, 2.0])
    assert caught.value.field == "state"


@pytest.mark.parametrize(
    ("task", "state", "message"),
    [
        ("  \n_", [0.0], "must be a text that says what to do"),
        (7, [0.0], "must be a text"),
        ("x" * 10_001, [0.0], "has 10001 characters; 10000 are allowed"),
        ("go", [float("nan")], "nan or infinity"),
        ("go", [0.0] * 9, r"`state` is \[9\]; it has 1 to 8 numbers"),
        ("go", [], r"`state` is \[0\]"),
        ("go", [[0.0]], r"`state` is \[1, 1\]"),
        ("go", ["left"], "must be a list of numbers"),
    ],
)
def test_wrong_prompts_are_refused(host: Pi05Host, task: Any, state: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        host.prompt(task, state)
    assert caught.value.field in ("task", "state")


def test_cameras(host: Pi05Host) -> None:
    """Arrays, .npy bytes and parts; in order."""
    first, second = (GOLDEN.tensor("image_preprocess", f"image_u8_{k}").numpy() for k in range(2))
    stored = io.BytesIO()
    np.save(stored, second)
    got = host.cameras([first, stored.getvalue(), Part("image", data=stored.getvalue()), Part("image", data=first)])
    assert got.shape == (4, 3, 56, 56) and got.dtype == np.float32
    wanted = [GOLDEN.tensor("image_preprocess", f"pixels_{k}")[0].numpy() for k in (0, 1, 1, 0)]
    assert np.abs(got - np.stack(wanted)).max() <= 1e-5


def test_cameras_of_the_tower_size_stay_bytes(host: Pi05Host) -> None:
    """The same pixels as of images that have to be resized, and of a batch that holds one of them."""
    frames = [np.random.default_rng(k).integers(0, 256, (56, 56, 3), np.uint8) for k in range(2)]
    got, wanted = host.cameras(frames), np.stack([pixels(frame, 56) for frame in frames])
    assert isinstance(got, Levels) and got.levels.flags.c_contiguous and got.levels.nbytes == wanted.nbytes // 4
    assert np.abs(np.asarray(got) - wanted).max() <= 2e-7
    mixed = host.cameras([frames[0], frames[1][:28]])
    assert isinstance(mixed, np.ndarray) and np.array_equal(mixed[0], wanted[0])


PIXEL = np.zeros((1, 1, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "a list of 1 to 16 camera images"),
        ([PIXEL] * 17, "a list of 1 to 16"),
        (PIXEL, "a list of 1 to 16"),
        ([PIXEL, "cat"], r"`images\[1\]` is a str, not an image"),
        ([PIXEL.astype(np.float32)], r"must be u8 \[height, width, 3\] \(RGB\), got float32 \[1, 1, 3\]"),
        ([np.zeros((4, 4), np.uint8)], r"must be u8 .* got uint8 \[4, 4\]"),
        ([np.zeros((0, 4, 3), np.uint8)], "is 4 x 0 pixels"),
        ([np.zeros((1, 8193, 3), np.uint8)], "is 8193 x 1 pixels; sides are 1 to 8192"),
        ([b"\xff\xd8\xff\xe0"], "is broken JPEG|cannot decode"),
        ([b"\x93NUMPY\x01\x00"], "is a broken .npy file"),
    ],
)
def test_wrong_images_are_refused(host: Pi05Host, images: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        host.cameras(images)


def test_pickled_arrays_are_refused(host: Pi05Host) -> None:
    stored = io.BytesIO()
    np.save(stored, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadRequest, match=r"is a broken \.npy file"):
        host.cameras([stored.getvalue()])


def test_tokenizer_that_is_missing_or_wrong(host: Pi05Host, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json cannot be read"):
        Pi05Host.load({"pi05": CHECKPOINT}, {}).warm({"prompt"})
    with pytest.raises(LoadError, match="bound to no checkpoint"):
        Pi05Host.load({}, {}).prompt("go", [0.0])
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match="no token `<bos>`"):
        Pi05Host.load({"tokenizer": Checkpoint(path=tmp_path)}, {}).prompt("go", [0.0])
    Tokenizer(WordLevel({"<bos>": 1, "a": 384}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match=r"gives id 384, but pi0\.5 has embeddings of 384 tokens"):
        Pi05Host.load({"pi05": CHECKPOINT, "tokenizer": Checkpoint(path=tmp_path)}, {}).prompt("go", [0.0])
    with pytest.raises(LoadError, match="differ in length"):
        long(host, state_q01=[0.0], state_q99=[1.0, 2.0])
    with pytest.raises(LoadError, match="must be two lists of numbers"):
        long(host, state_q01=[0.0])
