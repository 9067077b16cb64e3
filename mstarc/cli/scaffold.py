"""`mstarc new`: a small model that works at once. Takes a name and a folder; writes a spec, its binding, its components, a README.

The components are one module named after the model, so that they are found from within the folder and hide no other module.
"""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path

from mstarc.cli.formatting import replace_text
from mstarc.cli.guard import OK, USAGE, Failure, say

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_STAND_IN = "NAME"

_WALK = """\
model NAME  # numbers that double, and the sum of every three of them

param count : int in 1..60 = 6  # what a client may set

# What there is: NAME.yaml says which class stands behind each node.
node source : stateless {
    op first(start: i64) -> x: i64
    op next(x: i64)      -> x: i64  { batch stack }
}
node summer : stateless {
    op total(xs: i64[n]) -> sum: i64
}

# From `produce` to `consume`, while both run: three numbers at a time, and fewer at the end.
stream numbers : i64  by fixed(size = 3)  at_end partial  capacity 12

walk produce(start: i64) {
    x = source.first(start)
    loop numbering times count carry x {
        emit x as tensor
        send x -> numbers
        x = source.next(x)
    }
}
walk consume() {
    for chunk in numbers { emit summer.total(chunk) as scalar }
}

# What a client can ask for.
request run(start: i64) -> tensor, scalar {
    together {
        producing: produce(start)
        consuming: consume()
    }
}
"""

_YAML = """\
# What NAME.walk is bound to: a class for each node, as `module.Class`. Weights would stand under `checkpoints`.
components:
  source: NAME_components.Source
  summer: NAME_components.Summer
"""

_COMPONENTS = '''\
"""The nodes of NAME.walk: a class for each node, a method for each op."""

from __future__ import annotations

from typing import Any

import numpy as np


class Source:
    """Makes numbers."""

    ARRAYS = "numpy"  # what the methods take and give; without this line, torch tensors

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Source:
        """Once a worker. `checkpoint`: where the weights are; `config`: what NAME.yaml has of the node."""
        return cls()

    def first(self, start: np.ndarray) -> np.ndarray:
        """[] -> []: one request."""
        return start

    def next(self, x: np.ndarray) -> np.ndarray:
        """[B] -> [B]: with `batch stack`, one row for each request that is due."""
        return 2 * x


class Summer:
    """Adds numbers."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Summer:
        return cls()

    def total(self, xs: np.ndarray) -> np.ndarray:
        """[n] -> []: the sum of a chunk."""
        return np.asarray(xs.sum())
'''

_README = """\
# NAME

`NAME.walk` says what the model does, `NAME.yaml` which classes stand behind its nodes; they are in
`NAME_components.py`.

```
mstarc check .
mstarc fmt .
mstarc compile NAME.walk -o generated
mstarc call generated --input start=1
```

The call answers 1 2 4 8 16 32, and the sums 7 and 56. `mstarc plan generated` shows ranks, streams and why they
progress, `mstarc graph NAME.walk -o NAME.html` draws a picture, `mstarc run generated` serves the same over HTTP.
"""


def scaffold(name: str) -> dict[str, str]:
    """The files of a new model, by name."""
    files = {f"{name}.walk": _WALK, f"{name}.yaml": _YAML, f"{name}_components.py": _COMPONENTS, "README.md": _README}
    return {file: re.sub(rf"\b{_STAND_IN}(?=\b|_)", name, text) for file, text in files.items()}


def run_new(name: str, folder: Path) -> int:
    """Write the files of a new model. None is written if one of them exists. Raises Failure (usage)."""
    from mstarc.syntax.machine import machine

    if _NAME.fullmatch(name) is None:
        near = re.sub(r"[^A-Za-z0-9_]+", "_", name).lstrip("0123456789_")[:64].rstrip("_")
        what = f"`{name}` is no name: a letter, then letters, digits and _, at most 64"
        raise Failure(what, USAGE, help=f"mstarc new {near}" if near else "")
    if name in machine().reserved or keyword.iskeyword(name):
        raise Failure(f"`{name}` is a word of the language", USAGE, help=f"mstarc new my_{name}")
    files = scaffold(name)
    found = [file for file in files if (folder / file).exists()]
    if found:
        raise Failure(f"`{folder / found[0]}` exists, and nothing is overwritten", USAGE, help="name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).touch(exist_ok=False)
            replace_text(folder / file, text)
    except OSError as error:
        raise Failure(f"`{folder}` cannot be written: {error.strerror or error}", USAGE) from None
    say(f"wrote {', '.join(files)} to {folder}")
    for step in (f"compile {name}.walk -o generated", "call generated --input start=1"):
        say(f"  run: mstarc {step}")
    if folder != Path():
        say(f"  in:  {shlex.quote(str(folder))}")
    return OK


__all__ = ["run_new", "scaffold"]
