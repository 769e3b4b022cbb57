"""What our workers do on every platform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vllm.config import VllmConfig
from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.gpu_worker import Worker

from jetflow_serve.auto.sharing import OTHER, WHYS
from jetflow_serve.check import require_hooks
from jetflow_serve.engine.auto_budget import auto_shares
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.metrics.board import Board, board_file
from jetflow_serve.metrics.posting import WORKER_PART, worker_series, worker_values
from jetflow_serve.options import AUTO


class TreeWorkerBase(Worker):
    """A worker whose drafts are trees; it refuses at once what it cannot serve."""

    backends: ClassVar[Mapping[AttentionBackendEnum, str]]
    """Our class in the place of each of vLLM's that the platform may choose. Without trees they do
    what vLLM's own do."""
    attention: ClassVar[tuple[type[Any], ...]]
    """What every layer attends with."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        require_hooks()
        read_settings(vllm_config)
        for backend, name in self.backends.items():
            register_backend(backend, name)
        # An engine that ran in this process before may have looked the old class up.
        selector._cached_get_attn_backend.cache_clear()
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)

    def init_device(self) -> None:
        """As vLLM's; then the server may read what this worker counts."""
        name_a_mask(self.vllm_config)
        super().init_device()
        # All workers of an engine count the same.
        self._board = _new_board(self.vllm_config) if self.is_driver_worker else None

    def load_model(self, *args: Any, **options: Any) -> None:
        """As vLLM's; then every layer of the target must attend with our class."""
        super().load_model(*args, **options)
        layers = self.vllm_config.compilation_config.static_forward_context
        for name, layer in layers.items():
            impl = getattr(layer, "impl", None)
            if impl is not None and not isinstance(impl, self.attention):
                raise TypeError(
                    f"layer {name} attends with {type(impl).__name__}, which knows no trees"
                )

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM's; then budget ``auto`` learns what steps cost."""
        times = super().compile_or_warm_up_model()
        settings = read_settings(self.vllm_config)
        if settings.options.budget == AUTO:
            self.model_runner.drafts.sharing = auto_shares(self, settings)
        return times

    def sample_tokens(self, grammar_output: Any) -> Any:
        """As vLLM's; then the server may read what the step counted."""
        output = super().sample_tokens(grammar_output)
        if self._board is not None:
            self._board.post(worker_values(self.model_runner.counters))
        return output

    def shutdown(self) -> None:
        """As vLLM's; nobody reads the board any more."""
        if (board := getattr(self, "_board", None)) is not None:
            board.unlink()
        super().shutdown()

    def jetflow_counters(self) -> dict[str, Any]:
        """What trees did so far; ``LLM.collective_rpc("jetflow_counters")`` asks for it."""
        return self.model_runner.counters.to_dict()


def _new_board(config: VllmConfig) -> Board:
    """Where this worker's counters are read from; gone when this process ends."""
    settings = read_settings(config)
    whys = (*WHYS, OTHER) if settings.options.budget == AUTO else ()
    most = 1 + config.speculative_config.num_speculative_tokens
    series = worker_series(settings.depth, most, whys)
    rank = config.parallel_config.data_parallel_index
    board = Board.create(board_file(config.instance_id, WORKER_PART, rank), series)
    board.unlink_at_exit()
    return board


def name_a_mask(config: VllmConfig) -> None:
    """VLLM's speculator wants a mask token; a head with a mask vector of its own has none.

    The token is never looked at, since our head makes its own block.
    """
    draft = config.speculative_config.draft_model_config.hf_config
    if draft.dflash_config.get("mask_token_id") is None:
        draft.dflash_config = {**draft.dflash_config, "mask_token_id": 0}
