"""vLLM's scheduler with an audit: what ``--scheduler-cls`` names where a share is to be audited.

A request that has ended is added once more under a name of ours, with its budget off and its prompt
computed anew. The engine decodes it among the others; nobody outside sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams, SamplingType
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from jetflow_serve.audit.judge import BUSY, Comparison, Divergence, Finished, skip_reason
from jetflow_serve.audit.tally import Tally, audit_series
from jetflow_serve.engine.requests import BUDGET, choice_of
from jetflow_serve.metrics.board import Board, board_file
from jetflow_serve.metrics.posting import AUDIT_PART
from jetflow_serve.options import read_options
from jetflow_serve.reasons import Shape

_TOLD = 20
"""Likeliest tokens whose scores plain decoding tells, so that gaps can be read off."""
_MOST_AT_ONCE = 8
"""Audits that are under way at the same time; more would take the engine from its users."""
_ENDED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
logger = init_logger("vllm.jetflow")


class AuditScheduler(Scheduler):
    """A scheduler that has a share of finished requests decoded again; arguments are vLLM's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config = self.vllm_config
        self._share = read_options(config.additional_config).audit
        self._random = np.random.default_rng(config.model_config.seed or 0)
        self._audits: dict[str, tuple[str, Comparison]] = {}
        self._number = 0
        self.tally = Tally()
        rank = config.parallel_config.data_parallel_index
        self._board = Board.create(board_file(config.instance_id, AUDIT_PART, rank), audit_series())
        self._board.unlink_at_exit()

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's, without what audits wrote; that is compared."""
        running = [
            self.requests[name]
            for name in scheduler_output.num_scheduled_tokens
            if name in self.requests and name not in self._audits
        ]
        found: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        for outputs in found.values():
            own = [each for each in outputs.outputs if each.request_id in self._audits]
            outputs.outputs = [
                each for each in outputs.outputs if each.request_id not in self._audits
            ]
            for output in own:
                self._compare(output)
        for request in running:
            if request.status in _ENDED:
                self._draw(request)
        self._board.post(self.tally.values())
        return found

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """As vLLM's; requests that the server ends, at a stop string say, have ended too."""
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        for request in ended:
            if self._audits.pop(request.request_id, None) is not None or request_ids is None:
                continue
            if finished_status is RequestStatus.FINISHED_ABORTED:
                self._draw(request)
        return ended

    def shutdown(self) -> None:
        """As vLLM's; nobody reads the board any more."""
        self._board.unlink()
        super().shutdown()

    def _draw(self, request: Request) -> None:
        if self._random.random() >= self._share:
            return
        reason = skip_reason(_finished(request))
        if reason is None and len(self._audits) >= _MOST_AT_ONCE:
            reason = BUSY
        if reason is not None:
            self.tally.skipped[reason] += 1
            return
        self._number += 1
        name = f"jetflow-audit-{self._number}"
        self._audits[name] = (request.request_id, Comparison(request.output_token_ids))
        self.add_request(_again(request, name))

    def _compare(self, output: EngineCoreOutput) -> None:
        original, comparison = self._audits[output.request_id]
        difference = comparison.take(output.new_token_ids, _scores(output.new_logprobs))
        if difference is None and not output.finished:
            return
        difference = difference or comparison.end()
        self.tally.judged(difference)
        if difference is not None:
            _report(original, difference)
        if not output.finished:
            # What follows a difference says nothing.
            self.finish_requests(output.request_id, RequestStatus.FINISHED_ABORTED)
        self._audits.pop(output.request_id, None)


def _finished(request: Request) -> Finished:
    params = request.sampling_params
    return Finished(
        greedy=params is not None and params.sampling_type is SamplingType.GREEDY,
        tokens=len(request.output_token_ids),
        drafted=params is not None and choice_of(params).shape is not Shape.PLAIN,
        structured_output=request.structured_output_request is not None,
        only_tokens=(
            request.prompt_token_ids is not None
            and request.prompt_embeds is None
            and not request.mm_features
            and request.lora_request is None
            and not request.resumable
        ),
    )


def _again(request: Request, name: str) -> Request:
    """The same request without drafts, as long as it became."""
    params: SamplingParams = request.sampling_params.clone()
    params.extra_args = {**(params.extra_args or {}), BUDGET: "off"}
    params.max_tokens = len(request.output_token_ids)
    params.logprobs, params.prompt_logprobs = _TOLD, None
    # What is in the cache was put there by steps with trees, and is to be judged as well.
    params.skip_reading_prefix_cache = True
    return Request(
        request_id=name,
        prompt_token_ids=list(request.prompt_token_ids),
        sampling_params=params,
        pooling_params=None,
        client_index=request.client_index,
        priority=request.priority,
        cache_salt=request.cache_salt,
        block_hasher=request._block_hasher,
    )


def _scores(told: Any) -> list[dict[int, float]]:
    if told is None:
        return []
    return [
        dict(zip(ids.tolist(), values.tolist(), strict=True))
        for ids, values in zip(told.logprob_token_ids, told.logprobs, strict=True)
    ]


def _report(original: str, found: Divergence) -> None:
    gap = "not told" if found.gap is None else f"{found.gap:.3g}"
    logger.warning(
        "Audit: request %s differs from plain decoding at token %d: %d was answered, plain "
        "decoding writes %d (-1: it ends); gap of the logits %s",
        original, found.place, found.written, found.again, gap,
    )  # fmt: skip
