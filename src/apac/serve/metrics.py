"""What Prometheus reads at /metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from apac.classify.decision import Decision
from apac.serve.model import Model

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the variable by which processes share their counts
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The counts of this process; with several processes, the text has those of all."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        self.requests = counter("apac_requests", "Requests answered", ("route", "status"))
        self.seconds = Histogram(
            "apac_request_seconds", "Time to answer a request", ("route",), buckets=SECONDS, registry=self.registry
        )
        self.images = counter("apac_images", "Images decided", ("model",))
        self.passes = counter("apac_passes", "Passes of decided images", ("model",))
        self.settled = counter(
            "apac_settled_images", "Images whose decision settled: more passes would not change it", ("model",)
        )
        self.waiting = gauge("apac_queue_images", "Images that wait for their first pass", ("model",))
        self.under_way = gauge("apac_under_way_images", "Images that share passes now", ("model",))

    def request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def decided(self, model: Model, decision: Decision) -> None:
        self.images.labels(model.name).inc(len(decision.labels))
        self.passes.labels(model.name).inc(int(decision.passes.sum()))
        self.settled.labels(model.name).inc(decision.stopped.count("certified"))
        self.observe([model])

    def observe(self, models: Iterable[Model]) -> None:
        """Read the queues."""
        for model in models:
            self.waiting.labels(model.name).set(model.engine.waiting)
            self.under_way.labels(model.name).set(model.engine.under_way)

    def text(self, models: Iterable[Model]) -> bytes:
        self.observe(models)
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self.registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)
        return generate_latest(shared)
