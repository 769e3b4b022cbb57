"""The work of ``jetflow generate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from jetflow_core.commands.growing import GrowOptions
from jetflow_core.commands.models import ModelOptions, dtype_name, head_name, target_name
from jetflow_core.commands.running import run_prompts
from jetflow_core.commands.sampling import SamplingOptions
from jetflow_core.commands.screen import Screen
from jetflow_core.commands.stats import PromptResult, stats_payload
from jetflow_core.commands.summary import Setting, lossless_line, summary_line
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.lossless import explain_difference
from jetflow_core.reports.files import check_output, write_json
from jetflow_core.sampling import SamplingParams
from jetflow_core.thinking import mismatch, mode

_PLAIN = TreeOptions(budget=1)
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Writing:
    """What was asked for."""

    texts: tuple[str, ...]
    models: ModelOptions
    trees: GrowOptions
    sampling: SamplingOptions
    chat: bool
    thinking: bool | None
    compare: bool
    check_lossless: bool
    stats: str | None


def write(wanted: Writing, screen: Screen) -> int:
    """Writes the answers to ``screen``; returns the exit code.

    Raises:
        ValueError: something does not fit; before anything is written.
    """
    options, params = wanted.trees.tree_options(), wanted.sampling.params()
    if wanted.stats is not None:
        check_output(wanted.stats)
    engine = wanted.models.load(screen.progress)
    params = wanted.sampling.with_bad_words(params, engine.target.tokenizer)
    prompts = [
        engine.encode(text, chat=wanted.chat, thinking=wanted.thinking) for text in wanted.texts
    ]
    if wanted.chat and engine.head is not None:
        told = mismatch(engine.head.info.thinking, mode(engine.target.tokenizer, wanted.thinking))
        if told is not None:
            screen.line(told, style="dim")
    setting = _setting(engine, options, params)
    if wanted.compare:
        screen.progress("warming up")
        _warm_up(engine, prompts[0], params, options)
    screen.progress("writing")
    results = []
    for result in _results(engine, prompts, params, options, wanted, screen):
        _tell(result, setting, screen)
        results.append(result)
    if wanted.stats is not None:
        payload = stats_payload(results, setting=setting, params=params, options=options)
        write_json(wanted.stats, payload)
    return int(any(r.difference is not None and not r.difference.is_near_tie for r in results))


def _results(
    engine: Engine,
    prompts: list[tuple[int, ...]],
    params: SamplingParams,
    options: TreeOptions,
    wanted: Writing,
    screen: Screen,
) -> Iterator[PromptResult]:
    runs = run_prompts(engine, prompts, params, options, screen.piece)
    for index, text in enumerate(wanted.texts):
        if len(prompts) > 1:
            screen.heading(f"[{index + 1}/{len(prompts)}] {_head_of(text)}")
        run = next(runs)
        screen.line()
        plain = difference = None
        if wanted.compare or wanted.check_lossless:
            screen.progress("decoding plainly")
            plain = next(run_prompts(engine, [prompts[index]], params, _PLAIN))
        if wanted.check_lossless and plain is not None:
            difference = explain_difference(engine, run.prompt, params, plain.tokens, run.tokens)
        yield PromptResult(
            text=text,
            run=run,
            plain=plain,
            difference=difference,
            checked=wanted.check_lossless,
            compared=wanted.compare,
        )


def _tell(result: PromptResult, setting: Setting, screen: Screen) -> None:
    for number, pick in enumerate(result.run.picks):
        if pick.logprob is not None:
            others = " ".join(f"{token}:{value:.3f}" for token, value in pick.top_logprobs or ())
            screen.line(f"token {number}: {pick.token} logprob {pick.logprob:.3f} top {others}")
    plain = result.plain if result.compared else None
    screen.line(summary_line(result.run, plain, setting), style="dim")
    if result.checked and result.plain is not None:
        line = lossless_line(
            result.difference, tokens=len(result.plain.tokens), dtype=setting.dtype
        )
        screen.line(line, style="dim")


def _warm_up(
    engine: Engine, prompt: tuple[int, ...], params: SamplingParams, options: TreeOptions
) -> None:
    """First passes pay for set-up; without this the first of two timed runs would pay alone."""
    few = replace(params, max_new_tokens=_WARM_UP_TOKENS, min_new_tokens=0)
    for each in (options, _PLAIN):
        for _ in run_prompts(engine, [prompt], few, each):
            pass


def _setting(engine: Engine, options: TreeOptions, params: SamplingParams) -> Setting:
    device = engine.target.device
    return Setting(
        target=target_name(engine),
        head=head_name(engine),
        dtype=dtype_name(engine),
        device=str(device),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        budget=str(options.budget),
        seed=None if params.is_greedy else params.seed,
    )


def _head_of(text: str, length: int = 72) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 3] + "..."
