"""THE decode loop: draft, grow a tree, verify it in one pass, walk it, commit, repeat.

A generator of rounds with no device code in it. Plain decoding is the same loop with trees of one
row. Several requests share the passes; none can feel another, since everything that decides a
token (its row of logits, its history, its noise) belongs to its own request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

from jetflow_tree import Accepted, Candidates, Scoring, Tree, lazy_walk

from jetflow_core.ending import Ending
from jetflow_core.picker import NonFiniteLogitsError, Pick, TokenPicker, argmax_rows
from jetflow_core.protocols import Drafter, Phases, RowOutput, TargetSession, TreePlanner
from jetflow_core.stopping import FinishReason

# What a finished walk looks for among the children: no drafted token is negative.
_NO_TOKEN = -1


class ContextTooLong(ValueError):
    """A prompt leaves no room for a single new token."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One prompt with the rules for its continuation."""

    prompt: tuple[int, ...]
    picker: TokenPicker
    ending: Ending
    """Used up by one decoding: it holds the text so far."""
    scoring: Scoring | None = None
    """Reshapes what is drafted for this request before its trees grow; None: nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did for one request."""

    request: int
    """Index of the request in the list given to ``decode``."""
    tree: Tree
    accepted: Accepted
    picks: tuple[Pick, ...]
    """Tokens committed by this round; a stop token is the last and included."""
    pieces: tuple[str, ...]
    """Text that each of ``picks`` made certain; the very last one also gives what was held back."""
    finish: FinishReason | None
    """None while the request goes on."""
    phases: Phases
    """Seconds of the pass that this round shared with its batch."""
    drafted_depths: int
    """Depths that the drafter offered; 0 in a plain step."""

    @property
    def text(self) -> str:
        """Text of this round; joined over all rounds it is the text of the request."""
        return "".join(self.pieces)


@dataclass(slots=True)
class _Running:
    """A request at work in a slot."""

    index: int
    request: DecodeRequest
    limit: int
    picker: TokenPicker
    ending: Ending
    generated: list[int] = field(default_factory=list)

    @property
    def root(self) -> int:
        return self.generated[-1] if self.generated else self.request.prompt[-1]

    @property
    def depth_left(self) -> int:
        """Deepest row that can still be kept: one more token always follows the accepted ones."""
        return self.limit - len(self.generated) - 1

    def reshaped(self, draft: Candidates) -> Candidates:
        """``draft`` as this request's trees grow from it."""
        scoring = self.request.scoring
        return draft if scoring is None else scoring(draft)


def decode(
    requests: Sequence[DecodeRequest],
    session: TargetSession,
    drafter: Drafter,
    planner: TreePlanner,
    *,
    num_slots: int,
    context_length: int,
) -> Iterator[Round]:
    """Rounds of all requests until each has finished; at most ``num_slots`` run at a time.

    Args:
        requests: in order of admission; one that asks for no token has no round.
        session: the target; its slots 0..num_slots-1 are used and released.
        drafter: proposes candidates for the same slots.
        planner: decides depth and trees.
        num_slots: requests in one pass.
        context_length: most tokens, prompt included, that a request may have.

    Yields:
        A ``Round`` for every running request after each pass, in slot order.

    Raises:
        ContextTooLong: before any work, if a prompt fills the target's context.
        NonFiniteLogitsError: the walk of a request came to a row that is not finite; the message
            names both.
    """
    check_prompts(requests, context_length)
    planner.begin()
    waiting = [
        (index, request)
        for index, request in enumerate(requests)
        if request.picker.params.max_new_tokens > 0
    ][::-1]
    running: dict[int, _Running] = {}
    try:
        while waiting or running:
            for slot in range(num_slots):
                if slot not in running and waiting:
                    index, request = waiting.pop()
                    running[slot] = _Running(
                        index,
                        request,
                        _limit(request, context_length),
                        request.picker,
                        request.ending,
                    )
                    _admit(slot, request, session, drafter)
            for slot, result in _one_pass(running, session, drafter, planner):
                if result.finish is not None:
                    session.release(slot)
                    del running[slot]
                yield result
    finally:
        for slot in running:
            session.release(slot)


def check_prompts(requests: Sequence[DecodeRequest], context_length: int) -> None:
    """Raises ``ContextTooLong`` or ValueError for the first prompt that cannot be continued."""
    for request in requests:
        _check_prompt(request, context_length)


def _check_prompt(request: DecodeRequest, context: int) -> None:
    if not request.prompt:
        raise ValueError("the prompt holds no token; at least one is needed")
    if len(request.prompt) >= context:
        raise ContextTooLong(
            f"the prompt has {len(request.prompt)} tokens; the target's context of {context} "
            f"leaves room for prompts of at most {context - 1}"
        )


def _limit(request: DecodeRequest, context_length: int) -> int:
    """New tokens that the request may still get: its own limit or the context's."""
    return min(request.picker.params.max_new_tokens, context_length - len(request.prompt))


def _admit(slot: int, request: DecodeRequest, session: TargetSession, drafter: Drafter) -> None:
    committed = session.prefill(slot, request.prompt)
    drafter.begin(slot, request.prompt)
    drafter.observe(slot, request.prompt[:-1], committed.features)


def _one_pass(
    running: dict[int, _Running], session: TargetSession, drafter: Drafter, planner: TreePlanner
) -> list[tuple[int, Round]]:
    slots = sorted(running)
    active = [running[slot] for slot in slots]
    times = [perf_counter()]
    depth = min(planner.depth(len(slots)), max(r.depth_left for r in active))
    roots = [r.root for r in active]
    drafts = drafter.propose(slots, roots, depth) if depth > 0 else []
    drafts = [r.reshaped(draft) for r, draft in zip(active, drafts, strict=False)]
    times.append(perf_counter())
    if drafts:
        trees = planner.grow(roots, drafts, [r.depth_left for r in active])
        _check_roots(active, trees)
    else:
        trees = [Tree.root_only(root) for root in roots]
    times.append(perf_counter())
    outputs = session.verify(slots, trees)
    # Reading the picks waits for the device, so the pass's time ends here.
    walks = [_Walk(r, tree, out) for r, tree, out in zip(active, trees, outputs, strict=True)]
    times.append(perf_counter())
    accepted = [walk.accept() for walk in walks]
    times.append(perf_counter())
    for slot, r, out, walk, kept in zip(slots, active, outputs, walks, accepted, strict=True):
        if walk.finish is None:
            _commit(slot, r, out, kept, session, drafter)
        r.generated.extend(pick.token for pick in walk.picks)
    times.append(perf_counter())
    phases = Phases(*(later - earlier for earlier, later in pairwise(times)))
    planner.learn(trees, accepted, phases)
    offered = [draft.depth for draft in drafts] or [0] * len(slots)
    return [
        (slot, Round(r.index, tree, kept, tuple(walk.picks), tuple(walk.pieces), walk.finish,
                     phases, deep))
        for slot, r, tree, kept, walk, deep in zip(
            slots, active, trees, accepted, walks, offered, strict=True
        )
    ]  # fmt: skip


def _check_roots(active: Sequence[_Running], trees: Sequence[Tree]) -> None:
    """A tree of a user's own builder that stands elsewhere would be verified as another text."""
    for request, tree in zip(active, trees, strict=True):
        if int(tree.tokens[0]) != request.root:
            raise ValueError(
                f"the builder's tree for request {request.index} has the root "
                f"{int(tree.tokens[0])}; its last committed token is {request.root}"
            )


def _commit(
    slot: int,
    running: _Running,
    output: RowOutput,
    walk: Accepted,
    session: TargetSession,
    drafter: Drafter,
) -> None:
    rows = (0, *walk.nodes)
    session.commit(slot, rows)
    drafter.observe(slot, (running.root, *walk.tokens), output.features[list(rows)])


class _Walk:
    """Walks one request's tree along the target's own picks, and ends where the request ends.

    Rows that need no processing of their own are picked all at once; the others only when the
    walk arrives at them, with the history of their own path. Nothing is asked of rows after the
    end, so a grammar never hears of tokens that follow its last one.
    """

    def __init__(self, running: _Running, tree: Tree, output: RowOutput) -> None:
        self._running, self._tree, self._logits = running, tree, output.logits
        self._history = list(running.generated)
        self._ready = argmax_rows(output.logits) if running.picker.plain_argmax else None
        self.picks: list[Pick] = []
        self.pieces: list[str] = []
        self.finish: FinishReason | None = None

    def accept(self) -> Accepted:
        """The accepted rows; the walk's last token, also a stop, is the correction."""
        walk = lazy_walk(self._tree, self._pick)
        return Accepted(walk.nodes, walk.tokens, self.picks[-1].token)

    def _pick(self, row: int) -> int:
        ready = None if self._ready is None else self._ready[row]
        pick = self._picked(row) if ready is None else Pick(ready)
        self._history.append(pick.token)
        self.picks.append(pick)
        self.finish = self._end()
        return _NO_TOKEN if self.finish else pick.token

    def _picked(self, row: int) -> Pick:
        try:
            return self._running.picker.pick(self._logits[row], self._history)
        except NonFiniteLogitsError as error:
            raise NonFiniteLogitsError(
                f"request {self._running.index}, row {row} of a tree of {self._tree.num_nodes}: "
                f"{error}"
            ) from error

    def _end(self) -> FinishReason | None:
        found, piece = self._running.ending.feed(self._history)
        if found is None and len(self._history) >= self._running.limit:
            found = "length"
        self.pieces.append(piece if found is None else piece + self._running.ending.flush())
        return found
