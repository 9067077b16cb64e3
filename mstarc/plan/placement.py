"""Placement files: which rank runs which node. Takes TOML; gives a `Placement` or findings with their place in the file.

default = 0             # the rank of every node that [place] does not name; 0 if left out and there is one rank
[ranks.0]
device = "cpu"
host = "a"              # ranks of one host share memory; left out: all ranks are on one host
threads = 1             # 0 or left out: chosen when the workers start
link = 1_048_576        # bytes that one step of a loop may send to and from it without a warning (MC603); left out: any number
chip = "h200"           # a device of `mstarc.plan.chips`: for estimates, and what has to fit (MC207, MC503); left out: neither
[place]
voice = 1
"llm.read" = 0          # one op of a node; the more exact name wins
llm = [1, 2]            # one node on several ranks at once: tensor parallelism
[walks.draw]            # what is different in walk `draw`: nodes, ops, and single calls by the name that they bind
a = 1
[ahead]                 # iterations that a loop may begin before it is known that it has ended; left out: the worker chooses
"speak.frames" = 0      # 0: each waits for the check before it
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from mstarc.binding import nearest
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Rule
from mstarc.plan.chips import CHIPS
from mstarc.plan.rules import MC606, MC607, MC608, MC609
from mstarc.source import SourceFile, Span

_RANK_KEYS = ("device", "host", "threads", "chip", "link")
_KEYS = ("default", "ranks", "place", "walks", "ahead")
Ranks: TypeAlias = tuple[int, ...]
MOST_AHEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank: a process on a device of a host. threads 0 = chosen at start. chip: its name in `mstarc.plan.chips`, or "".

    link: the bytes that one step of a loop may send to and from it, 0 = nothing is said.
    """

    device: str = "cpu"
    threads: int = 0
    chip: str = ""
    host: str = ""
    link: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """ranks by number, 0.. without a gap; `place`: node or `node.op` -> its ranks; every other node is on `default`.

    `walks`: the same for single walks, where a call may also be named by a value that it binds. Several ranks of one op are a tensor
    parallel group. `partial`: several ranks and no `default`, so `place` has to name every node. `ahead`: `walk.loop` -> how many of its
    iterations may begin before it is known that it has ended.
    """

    name: str = ""
    ranks: tuple[RankPlace, ...] = (RankPlace(),)
    place: Mapping[str, Ranks] = field(default_factory=dict)
    default: int = 0
    source: SourceFile = field(default_factory=lambda: SourceFile("", ""))
    partial: bool = False
    walks: Mapping[str, Mapping[str, Ranks]] = field(default_factory=dict)
    ahead: Mapping[str, int] = field(default_factory=dict)

    def rank_of(self, node: str) -> int:
        """The rank of a node where nothing more exact is said; the first of a tensor parallel group."""
        return self.place.get(node, (self.default,))[0]

    def ranks_of(self, node: str, op: str, walk: str, binds: Iterable[str]) -> Ranks:
        """The ranks of one call: by the value that it binds, then by op and node, in its walk before anywhere."""
        table, name = self._key_of(node, op, walk, binds)
        return (self.walks[walk] if table else self.place)[name] if name else (self.default,)

    def line_of(self, node: str, op: str, walk: str, binds: Iterable[str]) -> Span:
        """The line that says where one call runs, or that of `default`."""
        table, name = self._key_of(node, op, walk, binds)
        return self.where(name, table or "place") if name else self.where("default", "")

    def _key_of(self, node: str, op: str, walk: str, binds: Iterable[str]) -> tuple[str, str]:
        """(`walks.WALK`, or "" for `place`; the name there) of what places a call; the name is "" if nothing but `default` does."""
        for name in (*binds, f"{node}.{op}", node):
            if name in self.walks.get(walk, {}):
                return f"walks.{walk}", name
        return "", next((name for name in (f"{node}.{op}", node) if name in self.place), "")

    def where(self, key: str, table: str = "place") -> Span:
        """Where the file says it."""
        return _find(self.source, table, key)


def placement_paths(name: str, beside: Path) -> tuple[Path, ...]:
    """What a name may mean: a path, or a name in `specs/placements/` here or in `placements/` beside the spec."""
    files = (Path("specs/placements") / f"{name}.toml", beside / "placements" / f"{name}.toml")
    return (Path(name), *dict.fromkeys(files))


def find_placement(name: str, beside: Path) -> Path:
    """The first file among `placement_paths`; if there is none, the name as a path."""
    return next((path for path in placement_paths(name, beside) if path.is_file()), Path(name))


def known_placements(beside: Path) -> list[str]:
    """Names that `find_placement` knows."""
    folders = (Path("specs/placements"), beside / "placements")
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def read_placement(path: Path, report: Collector) -> Placement | None:
    """The placement of a file, or None after MC012 or MC606 to MC609."""
    try:
        source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"placement {path} cannot be read: {error.strerror or error}"
        report.report(rules.MC012, message, Span(str(path), 0, 0))
        return None
    except UnicodeDecodeError:
        report.report(rules.MC012, f"placement {path} is not UTF-8 text", Span(str(path), 0, 0))
        return None
    return parse_placement(source, report)


def parse_placement(source: SourceFile, report: Collector) -> Placement | None:
    """The placement of a text."""
    try:
        content = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        report.report(MC608, f"the placement is not TOML: {_first(error)}", _at_line(source, error))
        return None
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, of brackets without end
        what = "it is nested too deeply" if isinstance(error, RecursionError) else "a number in it has too many digits"
        report.report(MC608, f"the placement is not TOML: {what}", Span(source.path, 0, 0))
        return None
    before = report.failed
    for key in content:
        if key not in _KEYS:
            _unknown(key, _KEYS, _find(source, "", key), report)
    ranks = _ranks(_table(content, "ranks", source, report), source, report)
    place = _place("place", _table(content, "place", source, report), len(ranks), source, report)
    walks = {
        walk: _place(f"walks.{walk}", _table(given, walk, source, report, "walks"), len(ranks), source, report)
        for given in (_table(content, "walks", source, report),)
        for walk in given
    }
    ahead = _ahead(_table(content, "ahead", source, report), source, report)
    default = content.get("default", 0)
    if not _is_rank(default, len(ranks)):
        node = _find(source, "", "default")
        report.report(
            rules.MC601, f"`default = {_shown(default)}` is no rank, so nodes that [place] leaves out have none", node
        )
    if report.failed and not before:
        return None
    partial = "default" not in content and len(ranks) > 1
    return Placement(Path(source.path).stem, ranks, place, default, source, partial, walks, ahead)


def _first(error: Exception) -> str:
    return str(error).split(" (at ")[0]


def _at_line(source: SourceFile, error: Exception) -> Span:
    match = re.search(r"line (\d+)", str(error))
    line = int(match[1]) if match else 1
    return line_span(source, min(line, source.text.count("\n") + 1))


def line_span(source: SourceFile, line: int) -> Span:
    """A whole line, from 1."""
    text = source.line_text(line)
    start = len("\n".join(source.text.split("\n")[: line - 1]).encode()) + (line > 1)
    return Span(source.path, start, start + max(1, len(text.encode())))


def _find(source: SourceFile, table: str, key: str) -> Span:
    """The line of `key = ` in `[table]`, of `[table.key]`, or the file's start."""
    return _lines(source).get(f"{table}.{key}" if table else key, Span(source.path, 0, 0))


@lru_cache(maxsize=4)
def _lines(source: SourceFile) -> Mapping[str, Span]:
    """The first line of each header (`table`, `table.key`) and of each `key = ` in a table (`table.key`)."""
    found: dict[str, Span] = {}
    here, start = "", 0
    for line in source.text.split("\n"):
        size = len(line.encode())
        header = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        key = None if header else re.match(r"\s*\"?([^\"=\s]+)\"?\s*=", line)
        if header:
            here = header[1].replace('"', "")
            found.setdefault(here, Span(source.path, start, start + max(1, size)))
        elif key:
            name = f"{here}.{key[1]}" if here else key[1]
            found.setdefault(name, Span(source.path, start, start + max(1, size)))
        start += size + 1
    return found


def _table(
    content: Mapping[str, Any], key: str, source: SourceFile, report: Collector, within: str = ""
) -> Mapping[str, Any]:
    found = content.get(key, {})
    if isinstance(found, dict):
        return found
    name = f"{within}.{key}" if within else key
    at = _find(source, within, key)
    report.report(MC608, f"`{name}` is not a table", at, help=f"write `[{name}]` with one key a line")
    return {}


def _unknown(key: str, known: Iterable[str], at: Span, report: Collector, rule: Rule = MC608) -> None:
    near = nearest(key, known)
    help_text = f"did you mean `{near}`?" if near else "there are " + ", ".join(f"`{k}`" for k in known)
    report.report(rule, f"unknown key `{key}` in the placement", at, subject=key, help=help_text)


def _ranks(table: Mapping[str, Any], source: SourceFile, report: Collector) -> tuple[RankPlace, ...]:
    found: dict[int, RankPlace] = {}
    for key, value in table.items():
        at = _find(source, "ranks", key)
        if not re.fullmatch(r"[0-9]{1,6}", key) or not isinstance(value, dict):
            report.report(
                MC608, f"`ranks.{key[:40]}` is not a rank's table", at, help="write `[ranks.0]`, `[ranks.1]`, …"
            )
        elif int(key) in found:
            report.report(MC609, f"rank {int(key)} is described twice", at)
        else:
            found[int(key)] = _rank(key, value, source, report)
    for number in range(len(found)):
        if number not in found and not report.failed:
            message = f"there is no rank {number}, though there is a rank {max(found)}"
            report.report(MC609, message, _find(source, "ranks", str(max(found))))
    return tuple(found[number] for number in sorted(found)) or (RankPlace(),)


def _rank(key: str, table: Mapping[str, Any], source: SourceFile, report: Collector) -> RankPlace:
    for name in table:
        if name not in _RANK_KEYS:
            _unknown(name, _RANK_KEYS, _find(source, f"ranks.{key}", name), report)
    device, threads = table.get("device", "cpu"), table.get("threads", 0)
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
        at = _find(source, f"ranks.{key}", "device")
        report.report(
            MC607, f"device {_shown(device)} of rank {key} is not built yet", at, help="write `cpu` or `cuda:0`"
        )
    host = table.get("host", "")
    if not isinstance(host, str):
        report.report(MC608, f"`host` of rank {key} is not a name", _find(source, f"ranks.{key}", "host"))
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= 1024:
        at = _find(source, f"ranks.{key}", "threads")
        report.report(MC608, f"`threads` of rank {key} is not a number from 0 to 1024", at)
    link = table.get("link", 1)
    if isinstance(link, bool) or not isinstance(link, int) or link < 1:
        at = _find(source, f"ranks.{key}", "link")
        report.report(MC608, f"`link` of rank {key} is not a number of bytes from 1", at)
    chip = _chip(key, table, source, report)
    said = link if "link" in table and isinstance(link, int) else 0
    return RankPlace(str(device), threads if isinstance(threads, int) else 0, chip, str(host), said)


def _chip(key: str, table: Mapping[str, Any], source: SourceFile, report: Collector) -> str:
    chip = table.get("chip", "")
    if not isinstance(chip, str) or (chip and chip not in CHIPS):
        at = _find(source, f"ranks.{key}", "chip")
        known = ", ".join(f"`{name}`" for name in CHIPS)
        report.report(MC606, f"rank {key} is on chip {_shown(chip)}, which is not known", at, help=f"known are {known}")
    return chip if isinstance(chip, str) else ""


def _place(title: str, table: Mapping[str, Any], ranks: int, source: SourceFile, report: Collector) -> dict[str, Ranks]:
    """What one table says: a rank, or a list of different ranks."""
    found: dict[str, Ranks] = {}
    for name, value in table.items():
        group = value if isinstance(value, list) else [value]
        if group and all(_is_rank(rank, ranks) for rank in group) and len(set(group)) == len(group):
            found[name] = tuple(group)
            continue
        at = _find(source, title, name)
        if isinstance(value, dict):
            report.report(MC608, f"`{name}` is a table, not a rank", at, help=f'one op is named in quotes: "{name}.op"')
            continue
        what = "twice one rank" if group and all(_is_rank(rank, ranks) for rank in group) else "no rank"
        message = f"`{name}` is placed on {_shown(value)}, which is {what}"
        help_text = f"the file describes ranks 0 to {ranks - 1}" if ranks > 1 else "the file describes rank 0 only"
        report.report(MC606, message, at, subject=name, help=help_text)
    return found


def _ahead(table: Mapping[str, Any], source: SourceFile, report: Collector) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in table.items():
        at = _find(source, "ahead", name)
        if isinstance(value, dict):
            report.report(
                MC608, f"`{name}` is a table, not a number", at, help=f'a loop is named in quotes: "{name}.LOOP"'
            )
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_AHEAD:
            message = f"`{name}` may be {_shown(value)} iterations ahead, which is no number from 0 to {MOST_AHEAD}"
            report.report(MC608, message, at, subject=name)
        else:
            found[name] = value
    return found


def _shown(value: object) -> str:
    """A value in a message: its beginning, if it is long. A number can have more digits than Python prints."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of thousands of digits"


def _is_rank(value: object, ranks: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ranks
