"""The language server through the protocol, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.client import DEADLINE, ROOT, Client

ASK = ROOT / "specs/ask.walk"
MODEL = """model m
config { big = a.big }
param most : int in 1..9 = big
node a : stateless {
    op f(x: i64) -> y: i64   # größer 🎵
    op two(x: i64) -> y: i64, z: i64
}
stream s : i64 by fixed(1) capacity 4
walk w(start: i64) {
    loop l max most carry n = start {
        n, unused = a.two(n)
        send n -> s
    }
}
walk eat() { for c in s { emit a.f(c) as tensor } }
request r(start: i64) -> tensor {
    together {
        one: w(start)
        two: eat()
    }
}
"""
YAML = "config:\n  a: {big: 3}\ncomponents:\n  a: pack.parts.A\n"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    client = Client()
    yield client
    assert client.close() == 0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.walk").write_text(MODEL, encoding="utf-8")
    (tmp_path / "m.yaml").write_text(YAML)
    return tmp_path / "m.walk"


def _words(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(code, the text's first line) of diagnostics."""
    return [(d["code"], d["message"].split("\n")[0]) for d in found]


def test_what_it_can_do(client: Client) -> None:
    can = client.capabilities
    for name in ("hover", "definition", "completion", "documentSymbol", "documentFormatting", "codeAction"):
        assert can.get(f"{name}Provider"), name


def test_findings_come_on_open_change_and_save(client: Client, model: Path) -> None:
    uri = client.open(model)
    (found,) = client.diagnostics("m.walk")
    assert (found["code"], found["severity"], found["source"], found["tags"]) == ("MC006", 2, "mstarc", [1])
    assert found["range"] == {"start": {"line": 10, "character": 11}, "end": {"line": 10, "character": 17}}
    client.change(uri, MODEL.replace("a.two(n)", "a.too(n)"))
    assert [code for code, _ in _words(client.diagnostics("m.walk"))] == ["MC002"]
    client.change(uri, MODEL.replace("unused", "_"), 3)
    assert client.diagnostics("m.walk") == []
    client.change(uri, MODEL, 4)
    client.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    assert len(client.diagnostics("m.walk")) == 1
    client.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
    while client.diagnostics("m.walk"):
        pass


def test_findings_in_the_binding(client: Client, model: Path) -> None:
    client.open(model)
    assert client.diagnostics("m.yaml") == []
    uri = client.open(model.with_suffix(".yaml"))
    assert client.diagnostics("m.yaml") == []
    client.change(uri, YAML.replace("components", "component"))
    codes = [d["code"] for d in client.diagnostics("m.yaml")]
    assert codes == ["MC901"]
    client.change(uri, YAML.replace("big: 3", "bog: 3"), 3)
    found = client.diagnostics("m.walk")
    while "MC905" not in [d["code"] for d in found]:
        found = client.diagnostics("m.walk")
    related = next(d for d in found if d["code"] == "MC905")["relatedInformation"]
    assert related[0]["location"]["uri"].endswith("m.yaml") and related[0]["location"]["range"]["start"]["line"] == 1


def test_a_yaml_file_of_no_model_is_left_alone(client: Client, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("a: [")
    client.open(tmp_path / "other.yaml")
    assert client.diagnostics("other.yaml") == []


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("a.t|wo(n)", ["**two** (op of `a`)", "op two(x: i64) -> y: i64, z: i64"]),
        ("send |n ->", ["**n** (value of `w`)", "`i64[]`, on the device", "n, unused = a.two(n)"]),
        ("carry n = s|tart", ["**start** (input of `w`)", "start: i64"]),
        ("config { b|ig", ["**big** (config)", "`a.big` is `3`"]),
        ("max mos|t carry", ["**most** (param)", "param most : int in 1..9 = big"]),
        ("-> |s\n", ["**s** (stream)", "by fixed(1) capacity 4"]),
        ("one: |w(start)", ["**w** (walk)", "send n -> s"]),
        ("tog|ether", ["starts all arms at once"]),
        ("capa|city 4", ["how many items may wait"]),
    ],
)
def test_hover(client: Client, model: Path, place: str, says: list[str]) -> None:
    uri = client.open(model)
    client.diagnostics("m.walk")
    text = client.at("textDocument/hover", uri, MODEL, place)["contents"]["value"]
    assert all(part in text for part in says), text


def test_no_hover_where_there_is_no_name(client: Client, model: Path) -> None:
    uri = client.open(model)
    assert client.at("textDocument/hover", uri, MODEL, "# grö|ßer") is None
    assert client.at("textDocument/hover", uri, MODEL, "stateless |{") is None
    assert (
        client.ask("textDocument/hover", {"textDocument": {"uri": uri}, "position": {"line": 999, "character": 9}})
        is None
    )


@pytest.mark.parametrize(
    ("place", "line", "column"),
    [
        ("a.t|wo(n)", 5, 7),
        ("send |n ->", 10, 8),
        ("a.two(|n)", 10, 8),
        ("two: e|at()", 14, 5),
        ("for c in |s", 7, 7),
        ("a.f(|c)", 14, 17),
        ("max mos|t", 2, 6),
        ("{ emit |a.f", 3, 5),
        ("one: w(|start", 15, 10),
    ],
)
def test_definition(client: Client, model: Path, place: str, line: int, column: int) -> None:
    uri = client.open(model)
    found = client.at("textDocument/definition", uri, MODEL, place)
    assert found["uri"] == uri
    assert found["range"]["start"] == {"line": line, "character": column}


def test_the_definition_of_a_config_value_is_in_the_binding(client: Client, model: Path) -> None:
    uri = client.open(model)
    for place, column in (("= a.b|ig", 6), ("= |a.big", 2)):
        found = client.at("textDocument/definition", uri, MODEL, place)
        assert found["uri"].endswith("m.yaml") and found["range"]["start"] == {"line": 1, "character": column}
    text = MODEL.replace("= a.big", "= a.bug")
    client.change(uri, text)
    assert client.at("textDocument/definition", uri, text, "a.b|ug") is None


def test_positions_count_as_the_client_does(model: Path) -> None:
    text = MODEL.replace("    op two", '    # "🎵🎵"\n    op two').replace("walk eat", "# 🎵\nwalk eat")
    line = "/* 🎵 */ param later : int in 1..2 = 1".replace("/* 🎵 */ ", "")
    for encoding, width in (("utf-16", 2), ("utf-32", 1), ("utf-8", 4)):
        other = Client([encoding])
        assert other.capabilities["positionEncoding"] == encoding
        broken = text + f'extern g(x: i64) -> i64 "🎵" {line}\n'
        other.open(model, broken)
        found = next(d for d in other.diagnostics("m.walk") if d["code"] == "MC010")
        span = found["range"]
        assert span["end"]["character"] - span["start"]["character"] == 2 + width
        assert other.close() == 0


def _offered(client: Client, uri: str, text: str, place: str) -> set[str]:
    return {item["label"] for item in client.at("textDocument/completion", uri, text, place)["items"]}


def test_completion_of_names(client: Client, model: Path) -> None:
    uri = client.open(model)
    assert _offered(client, uri, MODEL, "a.|two(n)") == {"f", "two"}
    assert _offered(client, uri, MODEL, "a.t|wo(n)") == {"f", "two"}
    assert _offered(client, uri, MODEL, "send n -> |s") == {"s"}
    inside = _offered(client, uri, MODEL, "a.two(|n)")
    assert {"n", "start", "a", "most", "big", "sample"} <= inside and not {"w", "eat", "c"} & inside
    assert {"w", "eat", "start"} <= _offered(client, uri, MODEL, "one: |w(start)")
    assert {"text", "tensor"} <= _offered(client, uri, MODEL, "as |tensor")


def test_completion_of_words(client: Client, model: Path) -> None:
    uri = client.open(model)
    assert {"emit", "send", "stop", "loop"} <= _offered(client, uri, MODEL, "        |send n")
    assert {"walk", "stream", "request"} <= _offered(client, uri, MODEL, "|walk eat")
    assert _offered(client, uri, MODEL, "by |fixed") == {"fixed", "sliding_window", "left_context", "phrase"}
    assert "capacity" in _offered(client, uri, MODEL, "fixed(1) |capacity")
    assert "emit" not in _offered(client, uri, MODEL, "fixed(1) |capacity")


def test_half_written_text(client: Client, model: Path) -> None:
    """At every place of a model that is being typed, everything is answered."""
    uri = client.open(model)
    for number, cut in enumerate(range(0, len(MODEL), 23)):
        text = MODEL[:cut]
        client.change(uri, text, 10 + number)
        line, column = text.count("\n"), len(text.rpartition("\n")[2].encode("utf-16-le")) // 2
        here = {"textDocument": {"uri": uri}, "position": {"line": line, "character": column}}
        for method in ("hover", "definition", "completion"):
            client.ask(f"textDocument/{method}", here)
        client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
        client.ask(
            "textDocument/formatting", {"textDocument": {"uri": uri}, "options": {"tabSize": 4, "insertSpaces": True}}
        )
    text = MODEL[: MODEL.index("two(n)")]
    client.change(uri, text, 999)
    assert _offered(client, uri, text, "n, unused = a.|") == {"f", "two"}
    half = MODEL.replace("send n -> s", "send n -> s\n        emit ")
    client.change(uri, half, 1000)
    assert {"n", "a", "start"} <= _offered(client, uri, half, "        emit |")
    assert not [note for note in client.notes if note.get("method") == "window/showMessage"]


def test_symbols(client: Client) -> None:
    uri = client.open(ASK)
    found = client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    names = {s["name"]: s for s in found}
    assert {"llm", "voice", "answer", "speak", "chat", "phrases"} <= set(names)
    assert [op["name"] for op in names["llm"]["children"]] == ["read", "step"]
    lines = ASK.read_text().split("\n")
    for symbol in found:
        place = symbol["selectionRange"]["start"]
        assert lines[place["line"]][place["character"] :].startswith(symbol["name"])


def test_formatting(client: Client, model: Path) -> None:
    ugly = MODEL.replace("    loop l max most", "  loop   l max most")
    uri = client.open(model, ugly)
    options = {"textDocument": {"uri": uri}, "options": {"tabSize": 4, "insertSpaces": True}}
    (edit,) = client.ask("textDocument/formatting", options)
    assert edit["range"]["start"] == {"line": 0, "character": 0} and edit["range"]["end"]["line"] == ugly.count("\n")
    client.change(uri, edit["newText"])
    assert client.ask("textDocument/formatting", options) is None, "it is in layout now"
    client.change(uri, "model m\nwalk (", 3)
    assert client.ask("textDocument/formatting", options) is None, "what does not parse stays as it is"


def test_quick_fixes(client: Client, model: Path) -> None:
    uri = client.open(model)
    client.diagnostics("m.walk")
    where = {"start": {"line": 10, "character": 12}, "end": {"line": 10, "character": 12}}
    ask = {"textDocument": {"uri": uri}, "range": where, "context": {"diagnostics": []}}
    (action,) = client.ask("textDocument/codeAction", ask)
    assert action["title"] == "bind `unused` to `_`" and action["edit"]["changes"][uri][0]["newText"] == "_"
    client.change(uri, "# new\n" + MODEL)
    assert client.ask("textDocument/codeAction", ask) == [], "the places of an older text are not used"


def test_it_ends_with_its_client() -> None:
    client = Client()
    assert client.process.stdin is not None
    client.process.stdin.close()
    client.process.wait(timeout=DEADLINE)


def test_without_its_library_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['pygls'] = None; from mstarc.cli import main; sys.exit(main(['lsp']))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 2 and "pip install 'mstarc[lsp]'" in ran.stderr, ran.stderr
