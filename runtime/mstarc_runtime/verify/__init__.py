"""`mstarc verify`: reference data of a model against its components on the paged engine.

`golden` reads a folder, `report` compares, `setup` says where; each model has a module whose `plan(golden, setup)` loads the
components and lists the cases. What a folder holds beyond what a plan asks for is reported as not verified, and is a failure.
"""

from mstarc_runtime.verify.golden import Golden, UnusableFolder
from mstarc_runtime.verify.report import Check, Report
from mstarc_runtime.verify.run import MODELS, items, model_of, verify
from mstarc_runtime.verify.setup import Item, Setup

__all__ = ["MODELS", "Check", "Golden", "Item", "Report", "Setup", "UnusableFolder", "items", "model_of", "verify"]
