"""The front door: load a target and a head, generate, stream, or decode many prompts together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jetflow_tree import BestFirst, TreeBuilder

from jetflow_core.decode import DecodeRequest, Round, check_prompts, decode
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.drafters.none import NoDrafter
from jetflow_core.dtypes import default_dtype
from jetflow_core.ending import Ending
from jetflow_core.fit import check_fit
from jetflow_core.head.checkpoint import LoadedHead, load_head, read_config
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.picker import Pick, TokenPicker
from jetflow_core.planning.auto import AutoPlanner
from jetflow_core.planning.fixed import FixedPlanner
from jetflow_core.planning.measure import measured_costs
from jetflow_core.protocols import Drafter, TreePlanner
from jetflow_core.sampling import SamplingParams
from jetflow_core.session import CachedSession
from jetflow_core.stopping import FinishReason
from jetflow_core.target import Target

_LOG = logging.getLogger(__name__)

MAX_BUDGET = 256
_AUTO_CPU_ROWS, _AUTO_GPU_ROWS = 32, 256
_MEASURE_CONTEXT = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOptions:
    """How trees are drafted and grown.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    budget: int | Literal["auto"] = "auto"
    """Rows of one verify pass, root included; 1 is plain decoding; "auto" follows measured cost."""
    depth: int | None = None
    """Deepest depth to draft; None: the head's own."""
    builder: TreeBuilder = field(default_factory=BestFirst)
    """Grows the trees. "auto" needs one whose trees are nested in the budget."""

    def __post_init__(self) -> None:
        if self.budget != "auto" and (
            isinstance(self.budget, bool)
            or not isinstance(self.budget, int)
            or not 1 <= self.budget <= MAX_BUDGET
        ):
            raise ValueError(f"budget {self.budget!r} is out of range: 1 to {MAX_BUDGET}, or auto")
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"depth {self.depth} is out of range: at least 1")
        if self.budget == "auto" and not isinstance(self.builder, BestFirst):
            raise ValueError("budget auto needs the BestFirst builder: its trees are nested")


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """New tokens; a stop token is the last and included."""
    text: str
    """Their text, special tokens and stop strings left out."""
    finish: FinishReason
    seed: int
    """The seed that repeats it."""
    picks: tuple[Pick, ...]
    """One a token, with log-probabilities if they were asked for."""
    rounds: tuple[Round, ...]

    @property
    def tau(self) -> float:
        """Tokens per round: tokens / rounds; a round gives its accepted tokens and one more."""
        return len(self.tokens) / len(self.rounds) if self.rounds else 0.0


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
        self.target, self.head = target, head
        self._auto: dict[tuple[int, int, TreeBuilder], TreePlanner] = {}
        self._said_reach = False

    @property
    def max_depth(self) -> int:
        """Deepest depth the head drafts; 0 without a head."""
        return self.head.config.max_depth if self.head else 0

    def encode(self, prompt: str, *, chat: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt, in the target's chat template unless ``chat`` is False."""
        tokenizer = self.target.tokenizer
        if not chat or not tokenizer.chat_template:
            return tuple(tokenizer.encode(prompt))
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
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

        Args:
            prompts: token ids.
            params: one for each prompt.
            options: how trees are grown.
            num_slots: requests in one pass.
            drafter: proposes instead of the head.

        Raises:
            ValueError: something does not fit, named; before any work.
        """
        requests = [self._request(p, q) for p, q in zip(prompts, params, strict=True)]
        live = [r for r in requests if r.picker.params.max_new_tokens > 0]
        if not live:
            return iter(())
        return self._rounds(live, options, num_slots, drafter)

    def _rounds(
        self,
        live: list[DecodeRequest],
        options: TreeOptions,
        num_slots: int,
        drafter: Drafter | None,
    ) -> Iterator[Round]:
        context = self.target.context_length
        check_prompts(live, context)
        longest = max(len(r.prompt) + r.picker.params.max_new_tokens for r in live)
        capacity = min(context, longest)
        self._say_reach(capacity)
        slots = min(num_slots, len(live))
        if drafter is None:
            drafter = self._drafter(slots, capacity)
            planner = self._planner(options, slots, drafter)
        else:
            planner = self._new_planner(options, drafter)
        rows = self._auto_rows if options.budget == "auto" else options.budget
        session = CachedSession(self.target, capacity=capacity, num_slots=slots, max_rows=rows)
        return decode(live, session, drafter, planner, num_slots=slots, context_length=context)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        options: TreeOptions | None = None,
    ) -> Generation:
        """One finished request; see ``generate_batch``."""
        return self.generate_batch([prompt], params, options)[0]

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
        requests = [self._request(p, q) for p, q in zip(prompts, each, strict=True)]
        live = [i for i, r in enumerate(requests) if r.picker.params.max_new_tokens > 0]
        found: list[list[Round]] = [[] for _ in requests]
        if live:
            chosen = [requests[i] for i in live]
            for result in self._rounds(chosen, options or TreeOptions(), num_slots, drafter):
                found[live[result.request]].append(result)
        return [_finished(r, rounds) for r, rounds in zip(requests, found, strict=True)]

    def _request(self, prompt: Sequence[int], params: SamplingParams) -> DecodeRequest:
        eos, vocab = self.target.eos_token_ids, self.target.vocab_size
        tokenizer = self.target.tokenizer if self.target.tokenizer_source else None
        return DecodeRequest(
            prompt=tuple(prompt),
            picker=TokenPicker(params, prompt, eos, vocab),
            ending=Ending(params, eos, tokenizer),
        )

    def _say_reach(self, longest: int) -> None:
        """Tells once that some text may go past the head's reach, where decoding gets plain."""
        if self.head is None or self._said_reach:
            return
        reach = self.head.config.max_position_embeddings
        if longest > reach:
            self._said_reach = True
            _LOG.warning(
                "the draft head reaches %d positions and a request may grow to %d: "
                "rounds past its reach are plain steps",
                reach,
                longest,
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
        if options.budget != "auto":
            return self._new_planner(options, drafter)
        key = (slots, options.depth or 0, options.builder)
        if key not in self._auto:
            # Measured on a drafter of its own: this one is about to be used.
            context = min(_MEASURE_CONTEXT, self.target.context_length)
            self._auto[key] = self._new_planner(options, self._drafter(1, context))
        return self._auto[key]

    def _new_planner(self, options: TreeOptions, drafter: Drafter) -> TreePlanner:
        depth = drafter.max_depth if options.depth is None else options.depth
        if depth > drafter.max_depth:
            raise ValueError(
                f"depth {depth} is out of range: this drafter goes to {drafter.max_depth}"
            )
        if options.budget != "auto":
            return FixedPlanner(options.builder, budget=options.budget, depth=depth)
        if depth == 0:
            return FixedPlanner(options.builder, budget=1, depth=0)
        context = min(_MEASURE_CONTEXT, self.target.context_length)
        session = CachedSession(self.target, capacity=context, max_rows=self._auto_rows)
        draft, verify = measured_costs(
            session, drafter, device_type=self.target.device.type, context_length=context
        )
        return AutoPlanner(
            options.builder,
            draft=draft,
            verify=verify,
            max_depth=depth,
            max_rows=self._auto_rows,
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


def _finished(request: DecodeRequest, rounds: list[Round]) -> Generation:
    picks = tuple(pick for r in rounds for pick in r.picks)
    return Generation(
        prompt=request.prompt,
        tokens=tuple(pick.token for pick in picks),
        text="".join(r.text for r in rounds) + request.ending.flush(),
        finish=(rounds[-1].finish if rounds else None) or "length",
        seed=request.picker.seed,
        picks=picks,
        rounds=tuple(rounds),
    )
