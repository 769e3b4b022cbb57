"""The front door: load a target and a head, generate, stream, or decode many prompts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jetflow_tree import TreeBuilder

from jetflow_core.decode import DecodeRequest, Round, check_prompts, decode
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.drafters.none import NoDrafter
from jetflow_core.dtypes import default_dtype
from jetflow_core.ending import Ending
from jetflow_core.fit import check_fit, check_taps
from jetflow_core.generation import Generation
from jetflow_core.head.checkpoint import LoadedHead, load_head, read_config
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.scores import head_scoring
from jetflow_core.limits import MAX_BUDGET
from jetflow_core.notices import Notices
from jetflow_core.picker import TokenPicker
from jetflow_core.planning.auto import AutoPlanner
from jetflow_core.planning.fixed import FixedPlanner
from jetflow_core.planning.measure import measured_costs
from jetflow_core.prompt_ids import prompt_ids
from jetflow_core.protocols import Drafter, TreePlanner
from jetflow_core.sampling import SamplingParams, is_integer
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_core.thinking import render
from jetflow_core.tree_options import TreeOptions

_AUTO_CPU_ROWS, _AUTO_GPU_ROWS = 32, 256
_MEASURE_CONTEXT = 256


__all__ = ["MAX_BUDGET", "Engine", "Generation", "TreeOptions", "load"]


class Engine:
    """A target with a draft head, ready to decode.

    Args:
        target: the frozen target, tapped where the head wants it.
        head: the draft head; None decodes plainly.

    Raises:
        HeadMismatch: the head was made for another target.
    """

    def __init__(self, target: Target, head: LoadedHead | None) -> None:
        if head is not None:
            check_fit(head, target)
            check_taps(head, target)
        self.target, self.head = target, head
        self._auto: dict[tuple[int, int, TreeBuilder], TreePlanner] = {}
        self._notices = Notices(target, head)

    @property
    def max_depth(self) -> int:
        """Deepest depth the head drafts; 0 without a head."""
        return self.head.config.max_depth if self.head else 0

    def encode(
        self, prompt: str, *, chat: bool = True, thinking: bool | None = None
    ) -> tuple[int, ...]:
        """Token ids of a prompt.

        Args:
            prompt: what the user says.
            chat: in the target's chat template, where it has one.
            thinking: whether that template is to let the target think; None: as it has it.

        Raises:
            ValueError: ``thinking`` is given and there is no template with such a switch.
        """
        tokenizer = self.target.tokenizer
        if not chat or not tokenizer.chat_template:
            if thinking is not None:
                raise ValueError("thinking is a switch of the chat template, and none is used")
            return tuple(tokenizer.encode(prompt))
        message = [{"role": "user", "content": prompt}]
        text = render(tokenizer, message, thinking)
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def rounds(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        options: TreeOptions,
        *,
        num_slots: int = 1,
        drafter: Drafter | None = None,
    ) -> Iterator[Round]:
        """Rounds of many requests, decoded together; see ``decode``.

        The texts of a request's rounds, joined, are its text.

        Args:
            prompts: token ids.
            params: one for each prompt.
            options: how trees are grown.
            num_slots: requests in one pass.
            drafter: proposes instead of the head.

        Raises:
            ValueError: something does not fit, named; before any work.
        """
        each = _one_each(params, len(prompts))
        own = drafter is None
        requests = [self._request(p, q, own=own) for p, q in zip(prompts, each, strict=True)]
        return self._rounds(requests, options, num_slots, drafter)

    def _rounds(
        self,
        requests: list[DecodeRequest],
        options: TreeOptions,
        num_slots: int,
        drafter: Drafter | None,
    ) -> Iterator[Round]:
        if not is_integer(num_slots) or num_slots < 1:
            raise ValueError(f"num_slots must be a whole number, at least 1, got {num_slots!r}")
        context = self.target.context_length
        check_prompts(requests, context)
        live = [r for r in requests if r.picker.params.max_new_tokens > 0]
        if not live:
            return iter(())
        longest = max(len(r.prompt) + r.picker.params.max_new_tokens for r in live)
        capacity = min(context, longest)
        self._notices.before(capacity)
        slots = min(num_slots, len(live))
        if drafter is None:
            drafter = self._drafter(slots, capacity)
            planner = self._planner(options, slots, drafter)
        else:
            planner = self._new_planner(options, drafter.max_depth, None)
        rows = self._auto_rows if options.budget == "auto" else options.budget
        session = CachedSession(self.target, capacity=capacity, num_slots=slots, max_rows=rows)
        return decode(requests, session, drafter, planner, num_slots=slots, context_length=context)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        options: TreeOptions | None = None,
    ) -> Generation:
        """One finished request; see ``generate_batch``."""
        return self.generate_batch([prompt], params, options)[0]

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        options: TreeOptions | None = None,
    ) -> Iterator[str]:
        """The text of one request piece by piece as it becomes certain, no piece empty.

        Joined, the pieces are the text that ``generate`` gives. Where the tokenizer cannot be
        streamed exactly (see ``TextStream``), it comes in one piece at the end.

        Args:
            prompt: token ids.
            params: rules; None: greedy, 128 new tokens.
            options: how trees are grown; None: budget auto.

        Raises:
            ValueError: something does not fit, named; before any work. A target without a
                tokenizer has no text.
        """
        if self.target.tokenizer_source is None:
            raise ValueError("this target has no tokenizer, so there is no text to stream")
        rounds = self.rounds([prompt], _one_each(params, 1), options or TreeOptions())
        return (each.text for each in rounds if each.text)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        options: TreeOptions | None = None,
        *,
        num_slots: int = 8,
        drafter: Drafter | None = None,
    ) -> list[Generation]:
        """Finished requests in the order of their prompts, each as if it had run alone.

        Args:
            prompts: token ids of each prompt.
            params: rules for all, or one for each; None: greedy, 128 new tokens.
            options: how trees are grown; None: budget auto.
            num_slots: requests in one pass.
            drafter: proposes instead of the head.
        """
        each = _one_each(params, len(prompts))
        own = drafter is None
        requests = [self._request(p, q, own=own) for p, q in zip(prompts, each, strict=True)]
        found: list[list[Round]] = [[] for _ in requests]
        for result in self._rounds(requests, options or TreeOptions(), num_slots, drafter):
            found[result.request].append(result)
        return [Generation.of(r, rounds) for r, rounds in zip(requests, found, strict=True)]

    def _request(
        self, prompt: Sequence[int], params: SamplingParams, *, own: bool
    ) -> DecodeRequest:
        """``own``: the head drafts, so that its scores are read as it says."""
        eos, vocab = self.target.eos_token_ids, self.target.vocab_size
        tokenizer = self.target.tokenizer if self.target.tokenizer_source else None
        ids = prompt_ids(prompt)
        return DecodeRequest(
            prompt=ids,
            picker=TokenPicker(params, ids, eos, vocab),
            ending=Ending(params, eos, tokenizer),
            scoring=head_scoring(self.head.config, params.temperature)
            if own and self.head
            else None,
        )

    @property
    def _auto_rows(self) -> int:
        return _AUTO_CPU_ROWS if self.target.device.type == "cpu" else _AUTO_GPU_ROWS

    def _drafter(self, slots: int, capacity: int) -> Drafter:
        if self.head is None:
            return NoDrafter()
        return HeadDrafter(
            self.head.head,
            self.target.embed_tokens,
            self.target.lm_head,
            num_slots=slots,
            capacity=capacity,
        )

    def _planner(self, options: TreeOptions, slots: int, drafter: Drafter) -> TreePlanner:
        """A planner for the head; what ``auto`` has measured and learnt outlives a request."""
        deepest = drafter.max_depth
        if options.budget != "auto":
            return self._new_planner(options, deepest, None)
        key = (slots, options.depth or 0, options.builder)
        if key not in self._auto:
            # Measured on a drafter of its own: this one is about to be used.
            context = min(_MEASURE_CONTEXT, self.target.context_length)
            measured = self._drafter(min(slots, 2), context)
            self._auto[key] = self._new_planner(options, deepest, measured, slots)
        return self._auto[key]

    def _new_planner(
        self, options: TreeOptions, deepest: int, measured: Drafter | None, slots: int = 1
    ) -> TreePlanner:
        """For drafts up to ``deepest``; ``auto`` times ``measured``, or else real drafts."""
        depth = deepest if options.depth is None else options.depth
        if depth > deepest:
            raise ValueError(f"depth {depth} is out of range: this drafter goes to {deepest}")
        if options.budget != "auto":
            return FixedPlanner(options.builder, budget=options.budget, depth=depth)
        if depth == 0:
            return FixedPlanner(options.builder, budget=1, depth=0)
        context = min(_MEASURE_CONTEXT, self.target.context_length)
        session = CachedSession(self.target, capacity=context, max_rows=self._auto_rows)
        costs = measured_costs(
            session,
            measured,
            num_slots=slots,
            device_type=self.target.device.type,
            context_length=context,
            vocab_size=self.target.vocab_size,
        )
        return AutoPlanner(
            options.builder,
            draft=costs.draft,
            verify=costs.verify,
            max_depth=depth,
            max_rows=self._auto_rows,
            draft_growth=costs.draft_growth,
        )


def load(
    target: str | Path | None = None,
    head: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Engine:
    """An engine from a target and a head.

    Args:
        target: folder or hub name; None: the embedded SmolLM2-135M-Instruct.
        head: a head's folder; None: the demonstration head with the embedded target, and plain
            decoding with any other.
        device: where both run.
        dtype: their type; None: what is fastest there (``default_dtype``).

    Raises:
        ValueError: something cannot be loaded or does not fit, named.
    """
    if head is None and is_default_target(target):
        head = default_head()
    taps: tuple[int, ...] = ()
    if head is not None:
        taps = read_config(Path(head))[0].target_layer_ids
    dtype = default_dtype(device) if dtype is None else dtype
    source = default_target() if target is None else target
    loaded = None if head is None else load_head(head, dtype=dtype, device=device)
    return Engine(Target.load(source, taps=taps, device=device, dtype=dtype), loaded)


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{count} prompts but {len(params)} sampling parameters")
    return list(params)
