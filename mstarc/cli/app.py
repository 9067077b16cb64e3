"""The verbs and their options. Each command turns its arguments into one call of a sibling module and gives back the exit status."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from mstarc import __version__
from mstarc.cli.guard import debugging, set_debug, shielded
from mstarc.cli.options import (
    ANY_PARAM,
    Checkpoints,
    FindingFormat,
    Findings,
    Folder,
    Inputs,
    Params,
    PictureFormat,
    Placement,
    Precision,
    Product,
    ProductFormat,
    RequestName,
    Spec,
    SpecOrPackage,
    Wants,
)

P = ParamSpec("P")

app = typer.Typer(
    name="mstarc",
    help="Compile `.walk` specs of composite multimodal models, and run what was compiled.",
    epilog="Exit status: 0 clean, 1 findings or a failed request, 2 usage, 3 generated code is stale, 70 internal error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def verb(command: Callable[P, int]) -> Callable[P, None]:
    """A command whose result is the exit status and that raises nothing else."""

    @functools.wraps(command)
    def shielding(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(shielded(lambda: command(*args, **kwargs)))

    return shielding


def run_app(args: list[str]) -> int:
    """Run one command line. Usage errors are told by typer, with status 2."""
    try:
        app(args, prog_name="mstarc")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mstarc {__version__}")
        raise typer.Exit


@app.callback()
def top(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if debug and not debugging():
        set_debug(True)


@app.command(rich_help_panel="Specs")
@verb
def check(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, or folders with .walk files below them.")],
    format: Findings = FindingFormat.text,
    deny_warnings: Annotated[bool, typer.Option("--deny-warnings", help="Warnings fail the check, too.")] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Write the fixes that change no meaning (a result to `_`, an `allow` deleted); report the rest.",
        ),
    ] = False,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            metavar="NAME=PATH",
            help="Hold the tensors of this checkpoint against the components that take them, by its headers. May be repeated.",
        ),
    ] = None,
) -> int:
    """Check specs and their binding files; report everything that is wrong."""
    from mstarc.cli.checking import CheckCall, run_check

    return run_check(CheckCall(tuple(paths), format.value, deny_warnings, fix, tuple(checkpoints or ())))


@app.command(rich_help_panel="Specs")
@verb
def fmt(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="Files, or folders with .walk files below them; or - for stdin."),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; status 1 if a file is not in canonical layout.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; show how the files would change.")] = False,
) -> int:
    """Lay out specs: one statement a line, comments and columns kept."""
    from mstarc.cli.formatting import FormatCall, run_format

    return run_format(FormatCall(tuple(paths), check, diff))


@app.command(rich_help_panel="Specs")
@verb
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the model is called: letters, digits, _.")],
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where it goes. Default: ./NAME")] = None,
) -> int:
    """Write a small working model to begin with: a spec, its binding, its components, a README."""
    from mstarc.cli.scaffold import run_new

    return run_new(name, folder if folder is not None else Path(name))


@app.command("compile", rich_help_panel="Specs")
@verb
def compile_(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="SPEC", help="A .walk file; with --check, generated packages.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="The package to write.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; show how the packages on disk differ. Status 3 if one does.")
    ] = False,
) -> int:
    """Compile a spec into a package of readable Python and a plan.

    With --check and no path, every generated/*/plan.json and examples/*/generated/plan.json below this folder is compared.
    """
    from mstarc.cli.compiling import run_compile

    return run_compile(paths or [], output, check)


@app.command(rich_help_panel="Look inside")
@verb
def ir(
    path: SpecOrPackage,
    after: Annotated[
        str | None,
        typer.Option(metavar="PASS", help="After which pass; `mstarc opt --list` names them. Default: lower."),
    ] = None,
    after_all: Annotated[
        bool, typer.Option("--after-all", help="After each pass that changes or says something.")
    ] = False,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="PASS PASS", help="How the text after the second pass differs from that after the first."),
    ] = None,
    format: Product = ProductFormat.text,
) -> int:
    """Print the intermediate form of a spec: what passes make of it, and what they find out about it."""
    from mstarc.cli.passes import IrCall, run_ir

    return run_ir(IrCall(path, after, after_all, diff, format.value))


@app.command(rich_help_panel="Look inside")
@verb
def opt(
    file: Annotated[str, typer.Argument(metavar="FILE", help="IR text, as `mstarc ir` prints it; - for stdin.")] = "-",
    passes: Annotated[
        str, typer.Option("-p", "--passes", metavar="PASS,PASS…", help="Which passes to run, in this order.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="Name the passes.")] = False,
    format: Product = ProductFormat.text,
) -> int:
    """Run passes on IR text and print the result; what analyses find follows as comments."""
    from mstarc.cli.passes import OptCall, run_opt

    return run_opt(OptCall(file, passes, listed, format.value))


@app.command(rich_help_panel="Look inside")
@verb
def graph(
    path: SpecOrPackage,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="X.html, X.svg, X.mmd or X.dot.")
    ] = None,
    format: Annotated[
        PictureFormat | None, typer.Option(help="Needed only if the file's ending does not say it.")
    ] = None,
) -> int:
    """Draw requests, walks, streams and contexts: one HTML page, SVG, Mermaid, or DOT. Without -o, to standard output."""
    from mstarc.cli.showing import run_graph

    return run_graph(path, output, None if format is None else format.value)


@app.command(rich_help_panel="Run")
@verb
def plan(
    folder: Folder,
    placement: Placement = None,
    checkpoints: Checkpoints = None,
    request: RequestName = None,
    given: Annotated[
        list[str] | None, typer.Option("--given", metavar="MODALITY", help="What the request brings. May be repeated.")
    ] = None,
    wants: Wants = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A param, or a length such as T=100. May be repeated."),
    ] = None,
    format: Product = ProductFormat.text,
) -> int:
    """Show a package under a placement: ranks, streams and why they progress, KV bytes, and what a request costs."""
    from mstarc.cli.costs import CostCall
    from mstarc.cli.planning import run_plan

    costs = CostCall(request or "", given or (), wants or (), values or ())
    return run_plan(folder, placement, checkpoints or [], format.value, costs)


@app.command(rich_help_panel="Specs")
@verb
def explain(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Such as MC202, or a rule's name.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="One line for each rule.")] = False,
    format: Product = ProductFormat.text,
) -> int:
    """Explain a rule: what it means, what fails, what passes, why it is there."""
    from mstarc.cli.explaining import run_explain

    return run_explain(code, listed, format.value)


@app.command(rich_help_panel="Specs")
@verb
def lsp() -> int:
    """The language server for editors, on standard input and output."""
    from mstarc.cli.editing import run_lsp

    return run_lsp()


@app.command(context_settings=ANY_PARAM, rich_help_panel="Look inside")
@verb
def interpret(
    context: typer.Context,
    path: Spec,
    request: RequestName = None,
    inputs: Inputs = None,
    params: Params = None,
    wants: Wants = None,
    seed: Annotated[int, typer.Option(help="Of the request's draws.")] = 0,
    order: Annotated[int | None, typer.Option(help="Of the arms: which goes first, by this seed.")] = None,
    format: Product = ProductFormat.text,
) -> int:
    """Run one request on the reference interpreter. Any other option is a param of the model: --max-tokens 64.

    Weights are hashes: it shows order, lengths, ends and counts.
    """
    from mstarc.cli.interpreting import InterpretCall, run_interpret

    extra = tuple(context.args)
    call = InterpretCall(path, request or "", inputs or (), params or (), wants or (), seed, order, format.value, extra)
    return run_interpret(call)


@app.command(rich_help_panel="Run")
@verb
def run(
    folder: Folder,
    placement: Placement = None,
    checkpoints: Checkpoints = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    deadline: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="The longest a request may take.")
    ] = None,
) -> int:
    """Serve a package over HTTP."""
    from mstarc.cli.serving import run_server

    return run_server(folder, placement, checkpoints or (), host, port, deadline)


@app.command(context_settings=ANY_PARAM, rich_help_panel="Run")
@verb
def call(
    context: typer.Context,
    folder: Folder,
    text: Annotated[str | None, typer.Option(help="What the user says.")] = None,
    audio: Annotated[Path | None, typer.Option(metavar="FILE", help="What the user says, as sound.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where sound (.wav), arrays (.npy, .npz) or all of it (.json) go."
        ),
    ] = None,
    params: Params = None,
    inputs: Inputs = None,
    wants: Wants = None,
    placement: Placement = None,
    checkpoints: Checkpoints = None,
    request: RequestName = None,
    seed: Annotated[int | None, typer.Option(help="Of the request's draws.")] = None,
    deadline: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="The longest it may take.")
    ] = None,
) -> int:
    """Run one request without a server. Any other option is a param of the model: --max-tokens 64."""
    from mstarc.cli.serving import OneCall, run_call

    return run_call(
        OneCall(
            folder=folder,
            text=text,
            audio=audio,
            output=output,
            params=params or (),
            inputs=inputs or (),
            wants=wants or (),
            placement=placement,
            checkpoints=checkpoints or (),
            request=request,
            seed=seed,
            deadline=deadline,
            extra=context.args,
        )
    )


@app.command(rich_help_panel="Run")
@verb
def verify(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Reference data: cases.json, cases.safetensors, config.json and weights."),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model it is of. Default: the folder's name.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[Precision, typer.Option(help="Of weights and KV caches.")] = Precision.float32,
    format: Product = ProductFormat.text,
) -> int:
    """Run reference data through a model's components on the paged engine and show every error beside its tolerance."""
    from mstarc.cli.verifying import run_verify

    return run_verify(folder, model, device, dtype.value, format.value)
