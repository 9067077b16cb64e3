"""The prompt of Orpheus: special ids around `voice: text`, and tokenizers that are missing or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.orpheus.host import TEXT_SIZE, OrpheusHost

CONFIG: dict[str, Any] = YAML(typ="safe").load((Path(__file__).parents[2] / "specs" / "orpheus.yaml").read_text())[
    "config"
]
BEFORE, AFTER = [128259, 128000], [128009, 128260, 128261, 128257]
WORDS = {"?": 0, "tara": 1, ":": 2, "hello": 3, "world": 4, "<bos>": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer that puts a beginning before every text, as the published one does."""
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<bos> $0", special_tokens=[("<bos>", 5)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def host(path: Path | None, config: dict[str, Any] = CONFIG) -> OrpheusHost:
    return OrpheusHost.load({} if path is None else {"orpheus": Checkpoint(path=path)}, config)


def test_prompt(folder: Path) -> None:
    """The beginning of text stands once: it is among the ids before."""
    ids = host(folder).tokenize("hello world", "tara")
    assert ids.tolist() == [*BEFORE, 1, 2, 3, 4, *AFTER] and ids.dtype == "int64"


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_the_tokenizer_lies_beside_the_weights(folder: Path, name: str) -> None:
    (folder / name).touch()
    assert host(folder / name).tokenize("hello", "tara").tolist() == [*BEFORE, 1, 2, 3, *AFTER]


@pytest.mark.parametrize("text", ["", " \n", "x" * (TEXT_SIZE + 1)])
def test_texts_that_are_refused(folder: Path, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        host(folder).tokenize(text, "tara")
    assert caught.value.field == "text"


def test_a_tokenizer_that_is_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json does not exist; it comes with the language model"):
        host(tmp_path).warm({"tokenize"})
    with pytest.raises(LoadError, match="no checkpoint `orpheus` is bound"):
        host(None).warm({"tokenize"})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match=r"tokenizer\.json cannot be read"):
        host(tmp_path).warm({"tokenize"})


@pytest.mark.parametrize("ids", [None, "128259", [-1], [1.5]])
def test_ids_of_the_prompt_that_are_none(folder: Path, ids: Any) -> None:
    with pytest.raises(LoadError, match=r"`llm\.prompt_after` is .*, not a list of ids"):
        host(folder, {"llm": {**CONFIG["llm"], "prompt_after": ids}})


def test_ids_that_the_model_has_no_embeddings_for(folder: Path) -> None:
    """The prompt of another checkpoint, and a tokenizer with more tokens."""
    with pytest.raises(
        LoadError, match="the prompt gives id 128261, but the language model has embeddings of 420 tokens"
    ):
        host(folder, {"llm": {**CONFIG["llm"], "vocab_size": 420}})
    small = {"vocab_size": 4, "prompt_before": [1], "prompt_after": []}
    assert host(folder, {"llm": small}).tokenize("hello", "tara").tolist() == [1, 1, 2, 3]
    with pytest.raises(LoadError, match="the tokenizer gives id 4, but"):
        host(folder, {"llm": small}).tokenize("world", "tara")
