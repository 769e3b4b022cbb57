"""The real target and the shipped head: what transformers writes, for every drafter and budget."""

import json
from pathlib import Path

import pytest
from jetflow_core.bench.grid import DRAFTERS
from jetflow_core.bench.lossless import LosslessSettings, run_lossless

# One prompt and few tokens, since 256 rows cost a second a pass on a core; 60 prompts of 128 tokens
# are recorded in docs/benchmarks/lossless.md. One process, since each imports transformers anew;
# that they share the work is tested with a small target.
PROMPT = "A baker makes 12 rolls an hour for 5 hours and sells 41 of them. How many are left?"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_drafter_and_budget_writes_what_transformers_writes(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}))
    settings = LosslessSettings(prompts=(str(prompts),), max_new_tokens=16, threads=1)
    report = run_lossless(settings)
    assert report["passed"], report["differences"]
    assert report["used"]["fp32_precision"] == ["ieee"]
    cells = {(cell["drafter"], cell["budget"]): cell for cell in report["cells"]}
    assert set(cells) == {(d, b) for d in DRAFTERS for b in (1, 2, 16, 64, 256)}
    assert {cell["answers"] for cell in cells.values()} == {report["plain_side"]["prompts"]}
    # Identity means little unless drafts were kept, refused and moved.
    assert cells["oracle", 64]["tau"] > 6
    assert cells["head", 64]["tau"] > 2
    assert cells["wrong", 64]["tau"] == 1
    assert cells["random", 256]["scattered_rounds"] > 0
