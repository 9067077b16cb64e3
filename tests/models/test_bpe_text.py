"""Text of a byte-level BPE model: a tiny vocabulary built here, and SmolLM2's against transformers' tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.bpe_text import ChatText, byte_of_character
from tests.models.llama_helpers import GGUF, smollm2

TEMPLATE = (
    "{% if messages[0]['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ã ©", "1 2", "Ġ 1"]


def names() -> list[str]:
    """Special tokens, a user-defined one, all bytes, and what the merges make."""
    characters = sorted(byte_of_character(), key=byte_of_character().__getitem__)
    return ["<s>", "</s>", "[tool é]", *characters, *(merge.replace(" ", "") for merge in MERGES)]


def write_gguf(path: Path, **changes: Any) -> Checkpoint:
    tokens = names()
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": MERGES,
        "template": TEMPLATE,
    }
    values["token_type"] = [3, 3, 4] + [1] * (len(tokens) - 3)
    values |= changes
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(values["model"])
    writer.add_tokenizer_pre(values["pre"])
    writer.add_token_list(values["tokens"])
    writer.add_token_types(values["token_type"])
    writer.add_token_merges(values["merges"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if values["template"]:
        writer.add_chat_template(values["template"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Checkpoint(path=path)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText.load(write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))


def pieces(chat: ChatText, ids: list[int]) -> list[str]:
    stream = chat.stream()
    return [*map(stream.push, ids), stream.finish()]


# ---------------------------------------------------------------------------------------------------------------- encoding


def test_merges_digits_and_special_tokens(chat: ChatText) -> None:
    shown = [names()[token] for token in chat.encode("<s>hello w12</s>")]
    assert shown == ["<s>", "hello", "Ġw", "1", "2", "</s>"]


def test_only_the_smollm_rule_takes_digits_one_by_one(chat: ChatText, tmp_path: Path) -> None:
    plain = ChatText.load(write_gguf(tmp_path / "tiny.gguf", pre="gpt-2"))
    shown = [[names()[token] for token in each.encode("12 1")] for each in (chat, plain)]
    assert shown == [["1", "2", "Ġ", "1"], ["12", "Ġ1"]]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_text_of_the_ids_of_a_text_is_the_text(chat: ChatText, text: str) -> None:
    ids = chat.encode(text)
    hidden = text.replace("<s>", "").replace("</s>", "")
    assert chat.text(ids) == hidden
    assert "".join(pieces(chat, ids)) == hidden


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(-2, len(names()) + 3), max_size=40))
def test_a_stream_of_any_ids_gives_the_text_of_all_ids(chat: ChatText, ids: list[int]) -> None:
    shown = pieces(chat, ids)
    assert "".join(shown) == chat.text(ids)
    known = [token for token in ids if 0 <= token < len(names())]
    if 2 not in known:  # the library's own decoder has another idea of added tokens between others
        assert "".join(shown) == chat.tokenizer.decode(known, skip_special_tokens=True)


def test_a_character_is_never_split(chat: ChatText) -> None:
    ids = chat.encode("a\U0001f600é")
    shown = pieces(chat, ids)
    assert len(ids) == 6  # four bytes of the emoji, é merged
    assert shown == ["a", "", "", "", "\U0001f600", "é", ""]
    assert pieces(chat, ids[:3]) == ["a", "", "", "�"]
    assert chat.piece(ids[1]) == "" and chat.piece(ids[5]) == "é" and chat.piece(0) == ""


# ------------------------------------------------------------------------------------------------------------------ prompt


def test_parts_that_are_not_text_split_the_prompt(chat: ChatText) -> None:
    sound, tricky = SimpleNamespace(kind="audio"), "x\ue000\ue000y"
    said = SimpleNamespace(kind="text", text="hear:")
    found = chat.render([("system", tricky), ("user", [said, sound, "and", sound])])
    assert found == [f"<s>system\n{tricky}</s><s>user\nhear:", sound, "and", sound, "</s><s>assistant\n"]
    assert chat.render([("user", "a")], answer=False) == ["<s>user\na</s>"]


def test_a_refusal_of_the_template_is_a_bad_request(chat: ChatText) -> None:
    with pytest.raises(BadRequest, match="no robots"):
        chat.render([("robot", "x")])


@pytest.mark.parametrize(
    "changes, pattern",
    [
        ({"model": "llama"}, "tokenizer `llama` with rule `smollm`"),
        ({"pre": "qwen2"}, "rule `qwen2` is not supported"),
        ({"token_type": [1, 2]}, "do not fit each other"),
        ({"merges": ["a b c"]}, "do not fit each other"),
        ({"merges": ["zz yy"]}, "cannot be used"),
        ({"template": "{% if %}"}, "chat template cannot be read"),
        ({"template": ""}, "`tokenizer.chat_template` is missing"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_a_load_error(
    tmp_path: Path, changes: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(LoadError, match=pattern):
        ChatText.load(write_gguf(tmp_path / "tiny.gguf", **changes))


def test_a_folder_gives_the_same_text(chat: ChatText, tmp_path: Path) -> None:
    chat.tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match="tokenizer_config"):
        ChatText.load(Checkpoint(path=tmp_path))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    other, text = ChatText.load(Checkpoint(path=tmp_path)), "<s>hello [tool é] wé12</s>"
    ids = chat.encode(text)
    assert other.encode(text) == ids and other.text(ids) == chat.text(ids) == "hello [tool é] wé12"
    assert other.render([("user", "a")]) == chat.render([("user", "a")])
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(LoadError, match="chat_template"):
        ChatText.load(Checkpoint(path=tmp_path))


# ------------------------------------------------------------------------------------------------------------ real weights

TEXTS = [
    "Hello, world! It's 2024-12-31 23:59.",
    "  leading,\ttabs and\n\n newlines  ",
    "naïve café — “quotes” 日本語 한국어 \U0001f600\U0001f469‍\U0001f4bb",
    "def f(x): return x**2 + 1234567890",
    "don't WE'RE i'll 3.14e-10",
    "<|im_start|>user\nnested <|im_end|> text<|endoftext|>",
]


@pytest.mark.weights
def test_the_prompt_of_smollm2_is_its_template() -> None:
    chat = ChatText.load(smollm2())
    assert chat.render([("user", "Hi")]) == [
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ]
    assert chat.render([("system", "Be brief."), ("user", "Hi")])[0].startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n"
    )
    ids = chat.encode("<|im_start|>user\nHi<|im_end|>\n")
    assert (ids[0], ids[-2]) == (1, 2) and chat.text(ids) == "user\nHi\n"


@pytest.mark.weights
@pytest.mark.slow
def test_smollm2_ids_equal_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    checkpoint = smollm2()
    assert checkpoint.path is not None
    chat = ChatText.load(checkpoint)
    theirs = AutoTokenizer.from_pretrained(str(checkpoint.path.parent), gguf_file=GGUF)
    for text in TEXTS:
        ids = chat.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert chat.text(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    messages = [
        {"role": "user", "content": TEXTS[2]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "7"},
    ]
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat.render([(m["role"], m["content"]) for m in messages]) == [wanted]
