"""From vLLM's configuration to the plain values that are checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jetflow_core.head.config import HeadConfig
from vllm.config import VllmConfig

from jetflow_serve.heads import read_head
from jetflow_serve.options import ServeOptions, read_options
from jetflow_serve.refusals import Engine, ServeRefused, check_engine


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine serves: a head, and how."""

    options: ServeOptions
    head: HeadConfig
    folder: Path
    warnings: tuple[str, ...]

    @property
    def depth(self) -> int:
        """Deepest depth the user wants; never more than the head drafts."""
        return self.options.depth or self.head.max_depth


def read_settings(config: VllmConfig) -> Settings:
    """The settings of an engine, everything checked.

    Raises:
        ServeRefused: the configuration is not served; the message names every fault.
        OptionError: an option is wrong.
        HeadConfigError: the head's config.json is.
    """
    if config.speculative_config is None or config.speculative_config.method != "dflash":
        raise ServeRefused(
            "this worker serves drafts of a JetFlow head: give --speculative-config with "
            '"method": "dflash" and "model": the head\'s folder'
        )
    options = read_options(config.additional_config)
    folder = Path(config.speculative_config.draft_model_config.model)
    head = read_head(folder)
    warnings = check_engine(read_engine(config), head, options)
    return Settings(options, head, folder, tuple(warnings))


def read_engine(config: VllmConfig) -> Engine:
    """The plain values of an engine that drafts."""
    model, parallel = config.model_config, config.parallel_config
    speculative, scheduler = config.speculative_config, config.scheduler_config
    return Engine(
        worker_cls=str(parallel.worker_cls),
        scheduler_cls=None if scheduler.scheduler_cls is None else str(scheduler.scheduler_cls),
        target_layers=model.get_total_num_hidden_layers(),
        target_hidden_size=model.get_hidden_size(),
        target_vocab_size=model.get_vocab_size(),
        target_is_hybrid=bool(model.is_hybrid or model.is_attention_free),
        target_windows=model.get_sliding_window() is not None,
        num_speculative_tokens=speculative.num_speculative_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        pipeline_parallel=parallel.pipeline_parallel_size,
        tensor_parallel=parallel.tensor_parallel_size,
        data_parallel=parallel.data_parallel_size,
        lora=config.lora_config is not None,
        cache_dtype=str(config.cache_config.cache_dtype),
        async_scheduling=bool(scheduler.async_scheduling),
        width_by_load=bool(speculative.uses_dynamic_speculative_decoding()),
    )
