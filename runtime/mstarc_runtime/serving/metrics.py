"""What an operator sees at `/metrics`: requests by outcome, what runs and waits, each rank's gauges, and what listeners hear."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.serving.answer import Answer

_FIRST_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 60.0)
_LATE_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Metrics:
    """The registry of one application. Counters of the engine are read when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineGauges(engine))
        self._requests = Counter(
            "mstarc_requests", "Requests by outcome.", ("request", "outcome"), registry=self.registry
        )
        self.open = Gauge("mstarc_http_open", "Calls of /v1 that are not fully answered.", registry=self.registry)
        self._first_token = self._histogram("mstarc_first_token_seconds", "Request to first token.", _FIRST_S)
        self._first_audio = self._histogram("mstarc_first_audio_seconds", "Request to first audio.", _FIRST_S)
        self._lateness = self._histogram(
            "mstarc_chunk_lateness_seconds", "How much later than its playback time an audio chunk came.", _LATE_S
        )
        self._stalls = Counter(
            "mstarc_playback_stalls", "Times a listener's buffer ran empty in mid-answer.", registry=self.registry
        )
        self._audio = Counter("mstarc_audio_seconds", "Length of audio made.", registry=self.registry)
        self._tokens = Counter("mstarc_tokens", "Tokens of chat requests.", ("kind",), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def ended(self, request: str, outcome: str) -> None:
        """A request is over: `ok`, or an outcome of `faults`."""
        self._requests.labels(request, outcome).inc()

    def heard(self, answer: Answer) -> None:
        """Record the times of an answer, complete or not."""
        if answer.first_text_s is not None:
            self._first_token.observe(answer.first_text_s)
        report = answer.playback.report()
        if report.first_s is not None:
            self._first_audio.observe(report.first_s)
        for late in report.lateness:
            self._lateness.observe(late)
        self._stalls.inc(report.stalls)
        self._audio.inc(report.audio_s)
        if answer.usage is not None:
            self._tokens.labels("prompt").inc(answer.usage.prompt)
            self._tokens.labels("completion").inc(answer.usage.completion)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)


class _EngineGauges(Collector):
    """The engine's own numbers, read at each scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        yield GaugeMetricFamily("mstarc_ready", "1 if every rank is up with its weights.", value=float(engine.ready))
        for name, value in sorted(engine.gauges().items()):
            yield GaugeMetricFamily(f"mstarc_{_metric(name)}", f"Conductor: {name.replace('_', ' ')}.", value=value)
        events = CounterMetricFamily("mstarc_conductor_events", "What the conductor did.", labels=("event",))
        for name, count in sorted(engine.counters.items()):
            events.add_metric((name,), float(count))
        yield events
        names = sorted({name for gauges in engine.worker_gauges.values() for name in gauges})
        for name in names:
            family = GaugeMetricFamily(
                f"mstarc_rank_{_metric(name)}", f"Rank: {name.replace('_', ' ')}.", labels=("rank",)
            )
            for rank, gauges in sorted(engine.worker_gauges.items()):
                if name in gauges:
                    family.add_metric((str(rank),), gauges[name])
            yield family

    def describe(self) -> Iterator[Metric]:
        """Nothing is registered by name: what there is depends on the ranks."""
        return iter(())


def _metric(name: str) -> str:
    return _NOT_A_NAME.sub("_", name)
