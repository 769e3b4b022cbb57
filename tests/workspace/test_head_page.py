"""The page about the demonstration head says what the head's own config.json recorded."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {"GSM8K": "gsm8k", "HumanEval": "humaneval", "MBPP": "mbpp", "MT-Bench": "mtbench"}


def test_every_figure_of_the_page_is_the_recorded_one() -> None:
    config = ROOT / "packages/jetflow-core/src/jetflow_core/data/smollm2-135m-head/config.json"
    recorded = json.loads(config.read_text())["jetflow"]["provenance"]["evaluation"]
    page = (ROOT / "docs/benchmarks/demonstration-head.md").read_text()
    rows = re.findall(r"^\| ([\w-]*)(?: \((\d+)\))? ?\| (.+?) \|((?: [\d.]+ \|){4})$", page, re.M)
    assert len(rows) == 2 * len(NAMES)
    current = ""
    for name, prompts, kind, figures in rows:
        current = NAMES[name] if name else current
        if name:
            assert int(prompts) == recorded[current]["prompts"]
        tau = recorded[current]["path" if kind == "as shipped" else "marginal"]["tau"]
        assert figures.split() == [
            part for b in ("chain", "16", "64", "256") for part in (f"{tau[b]:.2f}", "|")
        ]
