"""Runs the plan of a model over a folder of reference data."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from mstarc_runtime.errors import LoadError, describe
from mstarc_runtime.verify.golden import Golden, UnusableFolder, existing
from mstarc_runtime.verify.report import LOOSE, Report
from mstarc_runtime.verify.setup import Item, Setup

MODELS = ("orpheus", "pi05", "vjepa2", "vjepa2_ac", "whisper")


def model_of(folder: Path, name: str | None) -> str:
    """The model that is named, or else that the folder is called after. Raises UnusableFolder."""
    model = name or existing(folder).resolve().name
    if model not in MODELS:
        hint = "" if name else f"; say which with --model {'|'.join(MODELS)}"
        raise UnusableFolder(f"there is no verification of a model `{model}`{hint}")
    return model


def items(model: str, golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder. Raises UnusableFolder; also for a checkpoint that cannot be loaded, naming what is wrong with it."""
    try:
        with torch.inference_mode():
            found: list[Item] = importlib.import_module(f"mstarc_runtime.verify.{model}").plan(golden, setup)
    except LoadError as error:
        raise UnusableFolder(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a document of another shape
        raise UnusableFolder(
            f"{golden.folder}/cases.json is not laid out as that of `{model}`: {describe(error)}"
        ) from error
    return found


def run_items(chosen: Sequence[Item], report: Report) -> None:
    """Run cases. What one raises is its failure alone."""
    for item in chosen:
        try:
            with torch.inference_mode():
                item.run(report)
        except Exception as error:  # a component can raise anything
            report.broken(item.name, describe(error), "raised")


def verify(folder: Path, model: str | None = None, setup: Setup | None = None) -> Report:
    """Verify a folder as `mstarc verify` does. Raises UnusableFolder."""
    setup = setup or Setup()
    if setup.device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", setup.device):
        raise UnusableFolder(f"`{setup.device}` is no device: cpu, cuda or cuda:N")
    if setup.device != "cpu":
        if not torch.cuda.is_available():
            raise UnusableFolder("there is no CUDA device here")
        torch.backends.cudnn.allow_tf32 = False  # reference data are f32
    golden = Golden(folder, setup.device)
    name = model_of(folder, model)
    report = Report(name, 0.0 if setup.dtype == "float32" else LOOSE.get(name, 0.0))
    run_items(items(name, golden, setup), report)
    for tensor in golden.left_over():
        report.broken(tensor, "no rule of this model's verification reads it", "not verified")
    return report
