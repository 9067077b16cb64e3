"""`mstarc graph`: a program as a picture. Takes a spec (or a package, whose spec it reads); prints."""

from __future__ import annotations

import sys
from pathlib import Path

from mstarc.cli.checking import single_model
from mstarc.cli.findings import write_checked
from mstarc.cli.guard import FINDINGS, INTERNAL, OK, USAGE, Failure
from mstarc.ir.core import Program
from mstarc.workspace import Model, load_model

PICTURES = (".html", ".svg", ".mmd", ".dot")


def read_model(path: str) -> Model:
    """The model of a spec, or of the spec that a package was made from. Findings are written. Raises Failure if there is no program."""
    model = load_model(single_model(_spec_of(path)))
    write_checked(model.checked)
    if model.program is None:
        status = model.checked.exit_code()
        raise Failure(f"`{path}` has no program to show", INTERNAL if status == INTERNAL else FINDINGS)
    return model


def _spec_of(path: str) -> str:
    folder = Path(path)
    if not (folder / "plan.json").is_file():
        return path
    from mstarc.cli.packages import read_package

    spec = folder / read_package(path).spec.path
    if not spec.is_file():
        raise Failure(f"`{path}` was made from `{spec}`, which does not exist", USAGE)
    return str(spec)


def run_graph(path: str, output: Path | None, format: str | None) -> int:
    """Draw the model: to a file whose ending says how, or to standard output (Mermaid, if nothing says otherwise)."""
    kind = _kind(output, format)
    program = read_model(path).program
    assert program is not None
    text = render_graph(program, kind)
    if output is None:
        sys.stdout.write(text)
        return OK
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"`{output}` cannot be written: {error.strerror or error}", USAGE) from None
    return OK


def render_graph(program: Program, kind: str) -> str:
    """The picture as html, svg, mmd or dot."""
    from mstarc.graph import picture, to_dot, to_mermaid

    seen = picture(program)
    if kind in ("html", "svg"):
        from mstarc.graph_svg import to_html, to_svg

        return to_html(seen) if kind == "html" else to_svg(seen)
    return to_dot(seen) if kind == "dot" else to_mermaid(seen)


def _kind(output: Path | None, format: str | None) -> str:
    if format is not None:
        return format
    if output is None:
        return "mmd"
    if output.suffix not in PICTURES:
        raise Failure(
            f"`{output}` ends in none of {', '.join(PICTURES)}", USAGE, help="or say `--format html|svg|mmd|dot`"
        )
    return output.suffix[1:]
