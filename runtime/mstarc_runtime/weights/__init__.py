"""From the files of a checkpoint to the parameters of a component. Only headers are read until the tensors are asked for.

`stored` gives the tensors of a file or folder unread, `mapped` puts them under the names that a binding's `weights` rules make, a `Fit`
holds them against the shapes that a component wants and says what is missing, unused or misshaped, and `fill` puts them into a module.
"""

from mstarc_runtime.weights.files import Stored, Weight, stored, weight
from mstarc_runtime.weights.fit import Fit, dtype_named, fill, fit_of
from mstarc_runtime.weights.problems import Problem
from mstarc_runtime.weights.rules import VERBS, Weights, mapped

__all__ = [
    "VERBS",
    "Fit",
    "Problem",
    "Stored",
    "Weight",
    "Weights",
    "dtype_named",
    "fill",
    "fit_of",
    "mapped",
    "stored",
    "weight",
]
