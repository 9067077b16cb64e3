"""Region loops of few rows: a device loop runs its body for every number of rows that it offers before its first request."""

from __future__ import annotations

import pytest

ROWS = 12  # so that requests of the larger tests wait for a row


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc_runtime.worker.rank.MAX_ROWS", ROWS)
