"""mstarc: a declarative graph compiler for composite multimodal models. Imports no torch."""

__version__ = "0.1.0"
