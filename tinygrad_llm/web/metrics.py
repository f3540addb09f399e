"""Metrics for Prometheus, by vLLM's names after our prefix: a dashboard for one reads the other."""
from __future__ import annotations
from collections.abc import Iterator
from typing import Any
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "tinygrad_llm:"
SHORT = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10)         # seconds: tokens
LONG = (.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)  # seconds: requests
HISTOGRAMS = {
  "time_to_first_token_seconds": ("From the request to its first token", LONG),
  "inter_token_latency_seconds": ("Between two tokens of an answer", SHORT),
  "e2e_request_latency_seconds": ("From the request to its end", LONG),
  "request_queue_time_seconds": ("Until the answer began to run", LONG),
  "request_prefill_time_seconds": ("Reading the prompt", LONG),
  "request_decode_time_seconds": ("From the first token to the last", LONG)}
COUNTERS = {"prompt_tokens": "Prompt tokens", "generation_tokens": "Tokens of answers",
            "prefix_cache_queries": "Prompt tokens that were looked for in the cache",
            "prefix_cache_hits": "Prompt tokens that were found there"}

class Metrics:
  """The server's counts. service: a Service. text(): as Prometheus reads them."""
  def __init__(self, service: Any):
    self.registry = CollectorRegistry()
    self.seconds = {name: Histogram(PREFIX + name, text, registry=self.registry, buckets=buckets)
                    for name, (text, buckets) in HISTOGRAMS.items()}
    self.counts = {name: Counter(PREFIX + name, text, registry=self.registry) for name, text in COUNTERS.items()}
    self.finished = Counter(PREFIX + "request_success", "Answers by the reason of their end", ("finished_reason",),
                            registry=self.registry)
    self.registry.register(_Now(service))
    ProcessCollector(registry=self.registry)

  def text(self) -> bytes: return generate_latest(self.registry)

  def ended(self, timing: Any, queued: float, total: float, reason: str) -> None:
    """An answer is over. timing: a Timing. queued, total: seconds in the queue, and from its request to now."""
    seconds, counts = self.seconds, self.counts
    seconds["request_queue_time_seconds"].observe(queued)
    seconds["e2e_request_latency_seconds"].observe(total)
    if timing.tokens:
      seconds["time_to_first_token_seconds"].observe(queued + timing.first_token)
      seconds["request_prefill_time_seconds"].observe(timing.prefill)
      seconds["request_decode_time_seconds"].observe(timing.decode)
    for name, n in (("prompt_tokens", timing.prompt_tokens), ("generation_tokens", timing.tokens),
                    ("prefix_cache_queries", timing.prompt_tokens), ("prefix_cache_hits", timing.cached_tokens)):
      counts[name].inc(n)
    self.finished.labels(reason).inc()

class _Now(Collector):
  """Values at the moment in which Prometheus asks."""
  def __init__(self, service: Any): self._service = service

  def collect(self) -> Iterator[Metric]:
    service = self._service
    def gauge(name: str, text: str, value: float) -> Metric: return GaugeMetricFamily(PREFIX + name, text, value)
    yield gauge("num_requests_running", "Answers that run", service.running)
    yield gauge("num_requests_waiting", "Answers that wait for a slot", service.waiting)
    if service.llm is None or service.state == "dead": return
    counts = service.llm.pool_counts()
    yield gauge("kv_cache_usage_perc", "Share of the KV pool's blocks that running answers hold",
                counts.referenced / max(1, counts.total))
    pools = [("blocks", "pool", counts), ("window_blocks", "pool of layers with a window", counts.windows)]
    for blocks, pool, found in pools if counts.windows is not None else pools[:1]:
      for name in ("total", "free", "referenced", "cached"):
        yield gauge(f"kv_{blocks}_{name}", f"Blocks of the KV {pool}: {name}", getattr(found, name))
    yield CounterMetricFamily(PREFIX + "kv_blocks_evicted", "Blocks that made room for others", counts.evictions)
