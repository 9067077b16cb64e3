"""Values on the command line: `--input name=value`, `--param name=value`, and `--max-tokens 5`. Takes texts; gives Python values.

A value is JSON where it reads as JSON, else text; `@FILE` is what a file holds, an array if it is a .npy file; `@FILE,@FILE` are the
contents of several, for a list of media and for a video. Where the kind of an input is known, a text stays text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstarc.cli.guard import USAGE, Failure

#: kinds of inputs that are given as bytes
BINARY = ("bytes", "image", "audio", "video")
#: how the kind of a list of one medium begins: `list:image`
LIST = "list:"
_NPY = b"\x93NUMPY"


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` texts by name. Raises Failure (usage) for one that is not of this form or comes twice."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failure(f"`{option} {text}` is not of the form `{option} name=value`", USAGE)
        if name in found:
            raise Failure(f"`{option}` gives `{name}` twice", USAGE)
        found[name] = value
    return found


def plain_value(text: str) -> Any:
    """JSON where it reads as JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    """`NaN` and `Infinity` are texts: no value of a model is one."""
    raise ValueError(name)


def typed_value(text: str, kind: str, option: str) -> Any:
    """The value of an input of a kind (text, bytes, image, …). Raises Failure (usage) if its file cannot be read."""
    if kind.startswith(LIST) or (kind == "video" and ",@" in text):
        if not text.startswith("@"):
            return plain_value(text)
        return [_read(Path(part.removeprefix("@")), option) for part in text.split(",@")]
    if text.startswith("@"):
        data = _read(Path(text[1:]), option)
        if kind in BINARY:
            return data
        if data.startswith(_NPY):
            return _array(data, text[1:])
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Failure(f"`{text[1:]}` is not UTF-8 text: byte {error.start}", USAGE) from None
    elif kind in BINARY:
        raise Failure(f"`{option}` is {kind}: give a file as `@FILE`", USAGE)
    return text if kind == "text" else plain_value(text)


def _array(data: bytes, name: str) -> Any:
    """The array of a .npy file. Raises Failure (usage) if it is broken."""
    import numpy as np

    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Failure(f"`{name}` is a broken .npy file: {error}", USAGE) from None


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{option}: `{path}` cannot be read: {error.strerror or error}", USAGE) from None


def typed_values(given: Mapping[str, str], kinds: Mapping[str, str], option: str) -> dict[str, Any]:
    """The values of inputs; one of unknown kind is read as JSON or text, and refused by whoever takes it."""
    return {name: typed_value(text, kinds.get(name, ""), f"{option} {name}") for name, text in given.items()}


def extra_params(args: Sequence[str], switch: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
    """`--max-tokens 5 --ignore-eos` as params. `switch`: whether a param is a bool, which needs no value."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(args):
        arg = args[position]
        position += 1
        if not arg.startswith("--") or arg == "--":
            raise Failure(f"`{arg}` is neither an option nor a param of the model", USAGE)
        name, equals, value = arg[2:].partition("=")
        name = name.replace("-", "_")
        if not name.isidentifier():
            raise Failure(f"`{arg}` is not an option", USAGE)
        if name in found:
            raise Failure(f"`--{name.replace('_', '-')}` is given twice", USAGE)
        following = args[position] if position < len(args) else None
        if not equals and switch(name) and following not in ("true", "false"):
            found[name] = True
            continue
        if not equals:
            if following is None or following.startswith("--"):
                raise Failure(f"`{arg}` needs a value", USAGE)
            value = following
            position += 1
        found[name] = plain_value(value)
    return found


def given_params(given: Iterable[str], extra: Sequence[str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """`--param k=v` and `--k v`, which must not both give one param. kinds: of the model's params; a text stays a text."""
    found = {name: _param(text, kinds.get(name, "")) for name, text in pairs(given, "--param").items()}
    for name, value in extra_params(extra, lambda name: kinds.get(name) == "bool").items():
        if name in found:
            raise Failure(f"param `{name}` is given twice", USAGE)
        found[name] = value
    return found


def _param(text: str, kind: str) -> Any:
    return text if kind in ("text", "enum") else plain_value(text)
