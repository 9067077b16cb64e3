"""Coded diagnostics with spans: the objects, the table of rules and the renderers."""
