"""Tree speculation in somebody else's engine: numpy only, three points of contact a round.

The engine below is a toy, one attention layer over a key/value cache, but it has what a real one
has: a cache that rows are written to, a mask, positions, and a commit of rows that are not
neighbours. Everything that JetFlow adds stands in `speculate`, numbered 1 to 3.

Run it: uv run python examples/own_engine.py
"""

from dataclasses import dataclass

import numpy as np
from jetflow_tree import (
    AcceptanceStats,
    BestFirst,
    Candidates,
    Tree,
    ancestor_matrix,
    position_offsets,
    to_text,
    walk,
)
from numpy.typing import NDArray

VOCABULARY, SIZE, CAPACITY = 48, 32, 512
Floats = NDArray[np.float64]


@dataclass
class Engine:
    """One attention layer with a cache; `length` rows of it are committed."""

    embed: Floats
    places: Floats
    mix: Floats
    keys: Floats
    values: Floats
    length: int = 0

    @classmethod
    def create(cls, seed: int) -> "Engine":
        """An engine with random weights and an empty cache."""
        rng = np.random.default_rng(seed)
        embed = rng.standard_normal((VOCABULARY, SIZE))
        places = 0.8 * rng.standard_normal((CAPACITY, SIZE))
        mix = rng.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE)
        cache = np.zeros((2, CAPACITY, SIZE))
        return cls(embed, places, mix, cache[0], cache[1])

    def forward(
        self, tokens: NDArray[np.int64], positions: NDArray[np.integer], mask: NDArray[np.bool_]
    ) -> Floats:
        """Writes the rows behind the committed ones and returns their logits [N, V].

        Row i sees all committed rows and those new rows j for which mask[i, j] is true.
        """
        rows = slice(self.length, self.length + len(tokens))
        hidden = self.embed[tokens] + self.places[positions]
        self.keys[rows], self.values[rows] = hidden, hidden @ self.mix.T
        scores = hidden @ self.keys[: rows.stop].T / np.sqrt(SIZE)
        scores[:, self.length :][~mask] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed = weights @ self.values[: rows.stop] / weights.sum(axis=1, keepdims=True)
        logits: Floats = (hidden @ self.mix + 0.8 * mixed) @ self.embed.T
        return logits

    def commit(self, rows: list[int]) -> None:
        """Keeps these of the rows just written; they move to the end of the committed ones."""
        moved = self.length + np.array(rows)
        end = self.length + len(rows)
        self.keys[self.length : end] = self.keys[moved]
        self.values[self.length : end] = self.values[moved]
        self.length = end


def prefill(engine: Engine, prompt: list[int]) -> None:
    """Commits all of the prompt but its last token, which is the first root."""
    before = np.array(prompt[:-1], dtype=np.int64)
    engine.forward(before, np.arange(len(before)), np.tri(len(before), dtype=bool))
    engine.commit(list(range(len(before))))


def plain(prompt: list[int], new_tokens: int) -> list[int]:
    """One token a pass: what speculation must reproduce."""
    engine = Engine.create(0)
    prefill(engine, prompt)
    text = list(prompt)
    for _ in range(new_tokens):
        logits = engine.forward(np.array(text[-1:]), np.array([engine.length]), np.tri(1) > 0)
        engine.commit([0])
        text.append(int(logits[0].argmax()))
    return text[len(prompt) :]


@dataclass
class BigramHead:
    """A cheap drafter: how often token b followed token a in earlier text."""

    log_probs: Floats

    @classmethod
    def fit(cls, texts: list[list[int]]) -> "BigramHead":
        """The head of these texts."""
        counts = np.full((VOCABULARY, VOCABULARY), 0.02)
        for text in texts:
            np.add.at(counts, (text[:-1], text[1:]), 1.0)
        return cls(np.log(counts / counts.sum(axis=1, keepdims=True)))

    def propose(self, root: int, depth: int, width: int) -> Candidates:
        """The likeliest tokens of each depth, scored below each candidate of the depth before."""
        tokens, table = [], []
        parents = np.full(width, root)
        reach = self.log_probs[root]
        for _ in range(depth):
            best = np.argsort(-reach, kind="stable")[:width]
            table.append(self.log_probs[np.ix_(parents, best)])
            reach = np.logaddexp.reduce(reach[best, None] + self.log_probs[best], axis=0)
            tokens.append(best)
            parents = best
        return Candidates(np.array(tokens), np.array(table))


def speculate(
    prompt: list[int], new_tokens: int, head: BigramHead, budget: int
) -> tuple[list[int], AcceptanceStats, Tree]:
    """A tree a pass. The text is the plain one's, in fewer passes."""
    engine, stats = Engine.create(0), AcceptanceStats()
    prefill(engine, prompt)
    text = list(prompt)
    while True:
        # 1. Grow the tree from what the draft head proposes below the last committed token.
        tree = BestFirst().build(text[-1], head.propose(text[-1], depth=6, width=8), budget)
        # 2. Verify all of its rows in one pass: positions by depth, sight along ancestors only.
        positions = engine.length + position_offsets(tree)
        logits = engine.forward(tree.tokens, positions, ancestor_matrix(tree))
        # 3. Walk along the target's own picks, commit the rows on the walk, emit its tokens.
        accepted = walk(tree, logits.argmax(axis=1))
        engine.commit([0, *accepted.nodes])
        room = new_tokens - (len(text) - len(prompt))
        emitted = accepted.emitted[:room]
        text += emitted
        stats.add(tree, accepted, emitted=len(emitted))
        if len(text) - len(prompt) == new_tokens:
            return text[len(prompt) :], stats, tree


def main() -> None:
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, VOCABULARY, size=(40, 5)).tolist()
    head = BigramHead.fit([plain(prompt, 60) for prompt in prompts[1:]])
    expected = plain(prompts[0], 60)
    for budget in (1, 2, 8, 32):
        text, stats, tree = speculate(prompts[0], 60, head, budget)
        if text != expected:
            raise SystemExit(f"budget {budget}: the text differs from plain decoding")
        print(f"budget {budget:3}: same 60 tokens in {stats.rounds} passes, tau {stats.tau:.2f}")
    print("\nThe last tree:\n" + to_text(tree.trim(8)))


if __name__ == "__main__":
    main()
