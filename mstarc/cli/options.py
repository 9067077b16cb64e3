"""The arguments and options that several verbs share, as types of their parameters."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

# of verbs that run a request: params are options of their own
ANY_PARAM = {"allow_extra_args": True, "ignore_unknown_options": True}


class FindingFormat(StrEnum):
    """How findings are written."""

    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"


class ProductFormat(StrEnum):
    """How a product is written."""

    text = "text"
    json = "json"


class PictureFormat(StrEnum):
    """How a picture is written."""

    html = "html"
    svg = "svg"
    mmd = "mmd"
    dot = "dot"


class Precision(StrEnum):
    """In what weights and KV caches are kept."""

    float32 = "float32"
    bfloat16 = "bfloat16"


Spec = Annotated[str, typer.Argument(metavar="SPEC", help="A .walk file.")]
SpecOrPackage = Annotated[str, typer.Argument(metavar="SPEC|DIR", help="A .walk file or a generated package.")]
Folder = Annotated[str, typer.Argument(metavar="DIR", help="A generated package.")]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        "-p",
        metavar="NAME|PATH",
        help="A placement: a TOML file, or its name in specs/placements. Else one CPU rank.",
    ),
]
Findings = Annotated[FindingFormat, typer.Option(help="How findings are written.")]
Product = Annotated[ProductFormat, typer.Option(help="How the result is written.")]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME=PATH",
        help="Where a checkpoint of the binding is; its own sizes take the place of the binding's. May be repeated.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=VALUE", help="An input: JSON, text, @FILE (.npy too) or @FILE,@FILE. May be repeated."
    ),
]
Params = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A param of the model. May be repeated.")
]
Wants = Annotated[
    list[str] | None, typer.Option("--wants", metavar="MODALITY", help="An output modality. May be repeated.")
]
RequestName = Annotated[str | None, typer.Option(metavar="NAME", help="Which request to run, if there are several.")]
