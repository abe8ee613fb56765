"""Counters for Prometheus, in a registry of the server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from localllm.events import Finished

    from .pool import ModelPool

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "localllm_requests", "HTTP requests by path and status.", ["path", "status"], registry=registry
        )
        self.cancelled = Counter("localllm_cancelled", "Requests whose client went away.", registry=registry)
        self._tokens = Counter("localllm_tokens", "Tokens by kind.", ["kind"], registry=registry)
        self._answers = Counter("localllm_answers", "Answers by why they ended.", ["reason"], registry=registry)
        self._first = Histogram(
            "localllm_first_token_seconds", "Submission to first token.", buckets=SECONDS, registry=registry
        )
        self._queue = Histogram("localllm_queue_seconds", "Wait in the queue.", buckets=SECONDS, registry=registry)
        self._between = Histogram(
            "localllm_token_seconds",
            "Mean time between the tokens of an answer.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
            registry=registry,
        )
        self._running = Gauge("localllm_running", "Answers in the making.", ["model"], registry=registry)
        self._waiting = Gauge("localllm_waiting", "Answers that wait.", ["model"], registry=registry)
        self._pages = Gauge("localllm_kv_pages", "Pages of the KV cache.", ["model", "state"], registry=registry)
        self._loaded = Gauge("localllm_model_loaded", "Whether a model is in memory.", ["model"], registry=registry)

    def observe(self, finished: Finished) -> None:
        """An answer ended."""
        usage, timings = finished.usage, finished.timings
        self._answers.labels(finished.reason).inc()
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached").inc(usage.cached_tokens)
        self._tokens.labels("completion").inc(usage.completion_tokens)
        self._tokens.labels("drafted").inc(usage.drafted_tokens)
        self._tokens.labels("accepted").inc(usage.accepted_tokens)
        self._queue.observe(timings.queue_seconds)
        if usage.completion_tokens:
            self._first.observe(timings.first_token_seconds)
        if usage.completion_tokens > 1:
            self._between.observe(timings.decode_seconds / (usage.completion_tokens - 1))

    def render(self, pool: ModelPool) -> bytes:
        """The text that Prometheus reads."""
        loaded = dict(pool.loaded())
        for source in pool.sources:
            name = source.name
            self._loaded.labels(name).set(name in loaded)
            usage = loaded[name].engine.usage() if name in loaded else None
            self._running.labels(name).set(usage.running if usage else 0)
            self._waiting.labels(name).set(usage.waiting if usage else 0)
            if usage is not None:
                self._pages.labels(name, "total").set(usage.pages.total)
                self._pages.labels(name, "held").set(usage.pages.held)
                self._pages.labels(name, "cached").set(usage.pages.cached)
        return generate_latest(self.registry)
