"""JetFlow's metrics in vLLM's Prometheus registry: the plugin of vLLM's group for stat loggers.

vLLM makes it in the server's process and calls it whenever an engine reports a step. By then the
worker has written that step's sums on its board, so what is told is never older than the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import AggregateStatLoggerBase, PrometheusStatLogger
from vllm.v1.metrics.prometheus import REGISTRY
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from jetflow_serve.metrics.board import Board, board_file
from jetflow_serve.metrics.deltas import Deltas
from jetflow_serve.metrics.names import METRICS, Metric
from jetflow_serve.metrics.posting import PARTS
from jetflow_serve.refusals import WORKER


class JetFlowStatLogger(AggregateStatLoggerBase):
    """Tells what trees do, for all engines of one server; nothing in servers without trees.

    Args:
        vllm_config: vLLM's configuration.
        engine_indexes: the engines whose steps are reported here.
    """

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self._metrics: dict[str, tuple[Metric, Any]] = {}
        self._sources: dict[int, list[_Source]] = {}
        if vllm_config.parallel_config.worker_cls != WORKER:
            return
        _forget_old_metrics()
        self._metrics = {metric.name: (metric, _made(metric)) for metric in METRICS}
        self._model = str(vllm_config.model_config.served_model_name)
        for engine in engine_indexes:
            files = [board_file(vllm_config.instance_id, part, engine) for part in PARTS]
            self._sources[engine] = [_Source(file) for file in files]

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """An engine reported a step: what its boards say is told on."""
        for source in self._sources.get(engine_idx, ()):
            for (name, labels), (value, grown) in source.read().items():
                self._tell(name, labels, value, grown, str(engine_idx))

    def log_engine_initialized(self) -> None:
        """Nothing: vLLM logs that itself."""

    def _tell(
        self, name: str, labels: tuple[str, ...], value: float, grown: float, engine: str
    ) -> None:
        metric, collector = self._metrics[name]
        if metric.kind == "gauge":
            collector.labels(self._model, engine).set(value)
        elif metric.kind == "counter":
            if grown or not metric.labels:
                collector.labels(self._model, engine, *labels).inc(grown)
        else:
            child = collector.labels(self._model, engine)
            for _ in range(round(grown)):
                child.observe(float(labels[0]))


class _Source:
    """One board, looked for until it is there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._board: Board | None = None
        self._deltas = Deltas()

    def read(self) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
        """By metric and labels: the newest value, and by how much it grew."""
        if self._board is None:
            self._board = Board.open(self._file)
            if self._board is None:
                return {}
            # Both have it in memory now, so nothing is left behind however they end.
            self._board.unlink()
        values = self._board.read()
        grown = self._deltas.since(values)
        return {
            (series.metric, series.labels): (value, grown.get(series, 0.0))
            for series, value in values.items()
        }


def _made(metric: Metric) -> Any:
    """Prometheus' collector, of the class that vLLM's own metrics are of."""
    names = ["model_name", "engine"]
    if metric.kind == "counter":
        return PrometheusStatLogger._counter_cls(
            metric.name, metric.text, labelnames=[*names, *metric.labels]
        )
    if metric.kind == "gauge":
        return PrometheusStatLogger._gauge_cls(
            metric.name, metric.text, multiprocess_mode="mostrecent", labelnames=names
        )
    return PrometheusStatLogger._histogram_cls(
        metric.name, metric.text, buckets=metric.buckets, labelnames=names
    )


def _forget_old_metrics() -> None:
    """A second engine in one process starts anew, as vLLM's own metrics do."""
    for collector in list(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("jetflow:"):
            REGISTRY.unregister(collector)
