"""Budget ``auto`` of an engine: its costs are measured or found, then every step is chosen."""

from __future__ import annotations

from typing import Any

from jetflow_core.limits import MAX_BUDGET
from jetflow_core.rounds import AutoBudget
from jetflow_core.rounds.auto.choice import MOST_TOTAL
from jetflow_core.rounds.auto.costs import buckets_up_to
from jetflow_core.rounds.auto.ready import ready_costs
from vllm.config import VllmConfig
from vllm.logger import init_logger

from jetflow_serve.auto.costs import every_count
from jetflow_serve.auto.sharing import AutoShares
from jetflow_serve.engine.settings import Settings
from jetflow_serve.engine.step_costs import StepTimer, cost_key, room_of

_SHORT, _LONG = 32, 4096
logger = init_logger("vllm.jetflow")


def auto_shares(worker: Any, settings: Settings) -> AutoShares:
    """What chooses the rows of every step; steps are timed now unless that was done before.

    Args:
        worker: loaded, with its cache, and without requests.
        settings: what the engine serves.
    """
    config: VllmConfig = worker.vllm_config
    scheduler = config.scheduler_config
    most = min(config.speculative_config.num_speculative_tokens + 1, MAX_BUDGET)
    auto = AutoBudget(most=most, most_total=min(MOST_TOTAL, scheduler.max_num_batched_tokens))
    cache = worker.model_runner.kv_cache_config
    timer = StepTimer(
        worker,
        config.cache_config.block_size,
        cache.num_blocks,
        len(cache.kv_cache_groups),
    )
    key = cost_key(config, settings, bool(worker.use_v2_model_runner))
    contexts = _contexts(config.model_config.max_model_len, most)
    counts = buckets_up_to(scheduler.max_num_seqs, scheduler.max_num_seqs, factor=4)
    if ready_costs(auto, timer, key, counts, contexts=contexts):
        logger.info("Steps of %s requests were timed, for budget auto.", list(counts))
    worker.model_runner.drafts.restart()
    assert auto.costs is not None
    auto.costs = every_count(auto.costs)
    return AutoShares(auto, settings.depth)


def _contexts(longest: int, most: int) -> tuple[int, ...]:
    """A short and a long context that leave room for the steps that are timed."""
    last = max(min(longest - room_of(most) - 1, _LONG), 0)
    first = min(_SHORT, last)
    return (first,) if first == last else (first, last)
