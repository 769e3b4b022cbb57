"""From a head's candidates to what one request is drafted with."""

from __future__ import annotations

from jetflow_core.head.config import HeadConfig
from jetflow_core.head.scores import head_scoring
from jetflow_tree import BestFirst, Candidates, Chain, Tree

from jetflow_serve.options import ServeOptions
from jetflow_serve.reasons import Shape


def grow(
    root: int,
    candidates: Candidates,
    shape: Shape,
    nodes: int,
    temperature: float,
    head: HeadConfig,
    options: ServeOptions,
) -> Tree:
    """The tree of one request.

    Args:
        root: its last committed token.
        candidates: what the head proposes.
        shape: what the request may be drafted with.
        nodes: most drafted nodes.
        temperature: the request's; scores are read as sharply as it asks (``head.scores``).
        head: the head's description.
        options: the user's.

    Returns:
        At most ``nodes`` + 1 rows.
    """
    return grow_scored(root, scored(candidates, temperature, head), shape, nodes, options)


def scored(candidates: Candidates, temperature: float, head: HeadConfig) -> Candidates:
    """Candidates as a request at ``temperature`` reads their scores."""
    scoring = head_scoring(head, temperature)
    return candidates if scoring is None else scoring(candidates)


def grow_scored(
    root: int, candidates: Candidates, shape: Shape, nodes: int, options: ServeOptions
) -> Tree:
    """As ``grow``, of candidates whose scores are taken as they are."""
    if shape is Shape.PLAIN or nodes < 1 or not candidates.depth:
        return Tree.root_only(root)
    if shape is Shape.CHAIN or options.mode == "chain":
        return Chain().build(root, candidates, nodes + 1)
    return BestFirst(None, options.max_children).build(root, candidates, nodes + 1)
