"""The language reference compiles, and lists what the compiler has: no block, word, policy, attribute or code is out of date."""

from __future__ import annotations

import re
from importlib import import_module
from typing import get_args, get_type_hints

import numpy as np
import pytest

from mstarc import frontend
from mstarc.binding import check_binding, read_binding
from mstarc.binding_file import Binding, Checkpoint
from mstarc.diagnostics.core import Collector
from mstarc.diagnostics.rules import RULES, rule_state
from mstarc.diagnostics.text import render_all
from mstarc.frontend import load_text
from mstarc.ir import declarations
from mstarc.ir.types import DTYPES, MODALITIES, SCALARS
from mstarc.plan import rules as plan_rules
from mstarc.plan.placement import parse_placement
from mstarc.source import SourceFile
from mstarc.syntax import tables
from mstarc.syntax.machine import machine
from mstarc_runtime.abi.chunks import AT_END, Chunker, Policy, least_capacity, policy_of
from mstarc_runtime.engines.component import Run
from mstarc_runtime.weights import VERBS
from tests.specs.page import TEXT, Block, around, blocks, codes_of, findings, model, quoted, section, table

# -------------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("block", blocks("walk"), ids=lambda block: block.title)
def test_a_block_gives_what_it_says(block: Block) -> None:
    codes, look = codes_of(block)
    assert codes == ({block.code} if block.code else set()), look


def test_every_block_is_a_model_or_says_where_it_stands() -> None:
    walks = blocks("walk")
    assert len(walks) == len(re.findall(r"^```walk$", TEXT, re.M))
    assert all(block.place or block.text.startswith("model ") for block in walks)
    assert {block.place for block in walks} == {"", "declarations", "in a walk", "in a request"}
    assert all(b.place or b.text.startswith(("model parrot\n", "model around\n")) for b in walks)


def test_a_fragment_stands_inside_the_model_around_it() -> None:
    for place in ("declarations", "in a walk", "in a request"):
        codes, _ = findings(around("nonsense nonsense", place))
        assert "MC010" in codes, place


def test_the_table_of_contents_names_sections() -> None:
    anchors = re.findall(r"\]\(#([^)]+)\)", TEXT)
    headings = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^## (.*)$", TEXT, re.M)}
    assert set(anchors) <= headings and len(anchors) > 15


# --------------------------------------------------------------------------------------------------------------- words


def test_reserved_words_are_those_of_the_grammar() -> None:
    (listed,) = (block.text.split() for block in blocks("words"))
    assert sorted(listed) == sorted(machine().reserved)


def test_reserved_words_are_no_names() -> None:
    (listed,) = (block.text.split() for block in blocks("words"))
    for word in listed:
        codes, look = findings(around(f"let {word} = 1", "declarations"))
        assert {"MC010", "MC011"} & set(codes), look


def test_built_ins_are_those_of_the_front_end() -> None:
    listed = {call.split("(")[0] for row in table("Built-ins", "call") for call in quoted(row[0])}
    package = import_module(vars(frontend)["lower"].__module__).__package__
    symbols = import_module(f"{package}.symbols")
    assert listed == {*symbols.BUILTINS, *symbols.FORMS}


def test_built_ins_cannot_be_declared_again() -> None:
    for row in table("Built-ins", "call"):
        for call in quoted(row[0]):
            codes, look = findings(around(f"let {call.split('(')[0]} = 1", "declarations"))
            assert "MC001" in codes, look


def test_types_are_those_of_the_ir() -> None:
    rows = table("Types and dims", "type")
    assert tuple(quoted(rows[0][0]))[: len(DTYPES)] == DTYPES
    assert tuple(quoted(rows[1][0])) == SCALARS
    for medium in quoted(rows[2][0]):
        codes, look = findings(around(f"extern seen(m: {medium}) -> i64", "declarations"))
        assert not set(codes) & {"MC002", "MC007", "MC010"}, look


def test_modalities_are_those_of_the_ir() -> None:
    line = re.search(r"Modalities: ([^;]*);", section("Walks"))
    assert line is not None and tuple(quoted(line[1])) == MODALITIES


# ------------------------------------------------------------------------------------------- attributes and settings


def attribute_words() -> list[str]:
    return [form for row in table("Nodes and ops", "attribute") for form in quoted(row[0])]


def test_attributes_are_those_of_the_grammar() -> None:
    texts = machine().texts
    known = {texts[rule.expansion[0]] for rule in tables.load().rules if rule.origin == "attr"}
    assert {form.split()[0] for form in attribute_words()} == known | {"advance"}


@pytest.mark.parametrize("word", ["attend", "positions", "batch"])
def test_choices_of_an_attribute_are_those_of_the_ir(word: str) -> None:
    listed = {form.split()[1] for form in attribute_words() if form.split()[0] == word}
    assert listed == {choice for choice in get_args(get_type_hints(declarations.OpAttrs)[word]) if choice}


@pytest.mark.parametrize("form", sorted({form for form in attribute_words() if not form.startswith("advance")}))
def test_an_attribute_compiles_as_it_is_written(form: str) -> None:
    written = form.replace(" E", " 1").replace(" F", " 1").replace("samples S", "samples pick")
    written = written.replace("graph NAME a..b", "graph decode 1..64")
    rest = "" if form.startswith("attend") else "attend full  "
    rest += "" if form.startswith("positions") else "positions same  "
    text = f"node tried : transformer(kv) {{ op go(ids: i64[T]) -> y: f32[4] {{ {rest}{written} }} }}"
    codes, look = findings(around(text, "declarations"))
    assert "MC010" not in codes and "MC013" not in codes and "MC002" not in codes, look


def test_settings_of_samplers() -> None:
    names = [name for row in table("Samplers", "setting") for name in quoted(row[0])]
    assert len(names) >= 8
    values = {"suppress": "1..3 except 2", "min_tokens": "1, ends = 2", "ends": "[2, 3], min_tokens = 1"}
    for name in names:
        value = values.get(name, "1")
        codes, look = findings(around(f"sampler tried {{ {name} = {value} }}", "declarations"))
        assert "MC013" not in codes and "MC010" not in codes, look
        codes, _ = findings(around(f"sampler tried {{ {name}x = 1 }}", "declarations"))
        assert "MC013" in codes


# ------------------------------------------------------------------------------------------------------------- streams

NUMBERS = {"K": 5, "W": 7, "S": 3, "C": 6, "L": 4, "M": 9}


def policy(form: str) -> Policy:
    """The policy of `fixed(size = 3)`; letters stand for numbers."""
    name, inner = re.fullmatch(r"(\w+)\((.*)\)", form).groups()  # type: ignore[union-attr]
    pairs = re.findall(r"(\w+) = (\w+)", inner)
    return policy_of(name, {key: NUMBERS[value] if value in NUMBERS else int(value) for key, value in pairs})


def test_policies_are_those_of_the_ir() -> None:
    known = set(get_args(get_type_hints(declarations.Stream)["policy"]))
    pictured = {quoted(row[0])[0].split("(")[0] for row in table("Streams", "policy")}
    assert pictured == known
    assert {row[0].split("(")[0].strip("`") for row in capacities()} == known


def capacities() -> list[list[str]]:
    """The second table of the section."""
    rows = re.findall(r"^\| (`[^|]*`[^|]*) \| ([A-Z +]+) \|$", section("Streams"), re.M)
    return [list(row) for row in rows]


def test_ends_are_those_of_the_runtime() -> None:
    ends = {quoted(row[1])[0] for row in table("Streams", "policy") if quoted(row[1])}
    assert {end.replace("(", ":").rstrip(")") for end in ends} == {end for end in AT_END if end}


@pytest.mark.parametrize("row", table("Streams", "policy")[:9], ids=lambda row: f"{row[0]} {row[1]}")
def test_a_picture_shows_the_chunks(row: list[str]) -> None:
    end = quoted(row[1])[0].replace("(", ":").rstrip(")") if quoted(row[1]) else ""
    chunker: Chunker[int] = Chunker(policy(quoted(row[0])[0]), end)
    for item in range(1, 8):
        chunker.push(item, cut=item in (2, 3))
    chunker.end()
    found = []
    while chunker.ready():
        chunk = chunker.take()
        old = chunk.count - chunk.new
        parts = (chunk.items[:old], chunk.items[old:])
        found.append(" | ".join(" ".join(map(str, part)) for part in parts if part))
    assert " , ".join(found) == row[2]


def test_least_capacities() -> None:
    rows = capacities()
    assert len(rows) == 4
    for form, total in rows:
        assert least_capacity(policy(quoted(form)[0])) == sum(NUMBERS[name] for name in total.split(" + ")), form


def test_fields_of_a_chunk() -> None:
    line = next(line for line in section("Streams").splitlines() if "has the host fields" in line)
    fields = re.findall(r"`(\w+)`", line.split("fields", 1)[1])
    assert sorted(fields) == ["first", "index", "new", "tail"]
    text = "stream s : i64 by fixed(size = 2) at_end drop capacity 4\nwalk tell(x: i64) {{ send x -> s }}\n"
    text += "walk eat() {{ for c in s {{ emit sums.total(c) as scalar when c.{} == c.{} }} }}"
    for field in fields:
        assert not {"MC002", "MC305"} & set(findings(around(text.format(field, field), "declarations"))[0])
    assert "MC002" in findings(around(text.format("final", "final"), "declarations"))[0]


# --------------------------------------------------------------------------------------------------------------- codes


def test_every_code_on_the_page_exists() -> None:
    known = {*RULES, *(name for name in vars(plan_rules) if name.startswith("MC"))}
    assert set(re.findall(r"MC\d{3}", TEXT)) <= known


def test_families_of_rules() -> None:
    listed = {row[0][:3] for row in table("Findings", "family")}
    in_use = {code[:3] for code in RULES if rule_state(code) in ("checked", "link", "weights")}
    assert listed == in_use == {code[:3] for code in RULES}


# --------------------------------------------------------------------------------------- binding, placement, components


def test_the_binding_fits_the_model_at_the_top() -> None:
    program, report, _ = load_text("parrot.walk", model("parrot"))
    (block,) = blocks("yaml")
    source = SourceFile("parrot.yaml", block.text)
    bound = read_binding(source, report)
    assert bound is not None and program is not None, render_all(report.findings(), {source.path: source})
    check_binding(bound, program, report)
    assert report.findings() == (), render_all(report.findings(), {source.path: source})


def test_the_rules_of_weights_fit_the_format() -> None:
    (block,) = blocks("weights")
    rules = "".join(f"    {line}\n" for line in block.text.splitlines())
    report = Collector()
    bound = read_binding(SourceFile("x.yaml", f"components:\n  llm:\n    class: a.B\n{rules}"), report)
    assert bound is not None, [found.message for found in report.findings()]
    verbs = {next(iter(rule)) for rule in bound.binding.components["llm"].weights}
    assert verbs == set(VERBS), "each rule is shown"


def test_keys_of_the_binding_are_those_of_the_format() -> None:
    rows = table("The binding: X.yaml", "key")
    assert [quoted(row[0])[0] for row in rows] == list(Binding.__struct_fields__)
    assert set(Checkpoint.__struct_fields__) <= set(quoted(rows[1][1]))


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.code or "passes")
def test_placements(block: Block) -> None:
    report = Collector()
    source = SourceFile("P.toml", block.text)
    parsed = parse_placement(source, report)
    found = {d.rule.code for d in report.findings()}
    assert found == ({block.code} if block.code else set()), render_all(report.findings(), {source.path: source})
    assert (parsed is None) == bool(block.code)


def component(number: int) -> dict[str, object]:
    """The names that a Python block of the page defines."""
    scope: dict[str, object] = {}
    exec(compile(blocks("python")[number].text, "page.py", "exec"), scope)
    return scope


def test_the_stateless_component_does_what_its_op_says() -> None:
    voice = component(0)["Voice"].load(None, {}, "cpu")  # type: ignore[attr-defined]
    pcm = voice.speak(np.arange(3))
    assert pcm.shape == (300,) and pcm.dtype == np.float32


def test_the_transformer_component_runs_on_the_engine() -> None:
    torch = pytest.importorskip("torch")
    from mstarc_runtime.cache.contexts import Context
    from mstarc_runtime.cache.pool import Geometry, PagedPool
    from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine

    torch.manual_seed(0)
    net = component(1)["TinyLlm"].load(None, {"vocab_size": 512}, "cpu")  # type: ignore[attr-defined]
    engine = TransformerEngine(PagedPool(Geometry(2, 4, 2, 16), 40))
    read, step = OpSpec("llm.read", ("packed",)), OpSpec("llm.step", ("scalar",))
    prompts = [torch.tensor([5, 9, 2]), torch.tensor([7, 1])]
    contexts = [Context(engine.pool) for _ in prompts]
    engine.call(net.read, read, [Call((ids,), (c,), len(ids)) for ids, c in zip(prompts, contexts, strict=True)])
    (stepped,) = engine.call(net.step, step, [Call((torch.tensor(4),), (c,), 1) for c in contexts])
    for ids, row in zip(prompts, stepped, strict=True):
        longer = torch.cat((ids, torch.tensor([4])))
        (whole,) = engine.call(net.read, read, [Call((longer,), (Context(engine.pool),), len(longer))])
        assert row.shape == (512,)
        torch.testing.assert_close(row, whole[0], atol=1e-5, rtol=1e-4)


def test_members_of_a_run() -> None:
    listed = {quoted(row[0])[0].split("(")[0] for row in table("Components", "of a run")}
    assert listed == {name for name in vars(Run) if not name.startswith("_")}
