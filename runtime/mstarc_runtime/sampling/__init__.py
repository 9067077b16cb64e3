"""Sampling: token draws and noise from counter-based random numbers that do not depend on the batch."""
