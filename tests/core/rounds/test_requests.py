"""What a request may ask of rounds on the device, and wrong use of a runner."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_core.picker import NonFiniteLogitsError
from jetflow_core.rounds import (
    Finished,
    FixedBudget,
    NotOnDevice,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
)
from jetflow_core.rounds.graphs import RoundPrograms, rows_bucket
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, stack_of_model

Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]


def _request(eos: tuple[int, ...] = (), prompt: Any = (1, 2), **fields: Any) -> RoundRequest:
    return RoundRequest.of(prompt, SamplingParams(**fields), eos_ids=eos, vocab_size=128)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"logit_bias": {token: 1.0 for token in range(65)}},
        {"bad_words": ((3,),)},
        {"min_new_tokens": 3, "stop_token_ids": tuple(range(17))},
        {"logprobs": 0},
        {"logits_processor": lambda prompt, generated, logits: logits},
    ],
    ids=lambda fields: list(fields)[-1],
)
def test_what_the_device_cannot_do_is_refused_by_name(fields: dict[str, Any]) -> None:
    name = next(n for n in fields if n not in ("temperature", "stop_token_ids"))
    with pytest.raises(NotOnDevice, match=rf"^{name}=.* cannot .*engine\.Engine takes every"):
        _request(**fields)


def test_every_parameter_is_either_served_or_refused() -> None:
    """A new field of ``SamplingParams`` must be thought of here too."""
    import dataclasses

    served = {"max_new_tokens", "temperature", "stop_token_ids", "stop", "ignore_eos", "seed",
              "top_k", "top_p", "min_p", "logit_bias", "min_new_tokens"}  # fmt: skip
    refused = {"repetition_penalty", "frequency_penalty", "presence_penalty", "bad_words",
               "logprobs", "logits_processor"}  # fmt: skip
    assert {field.name for field in dataclasses.fields(SamplingParams)} == served | refused


def test_all_of_several_are_named_and_what_changes_nothing_passes() -> None:
    with pytest.raises(NotOnDevice, match=r"presence_penalty=0\.5, logprobs=2 cannot"):
        _request(temperature=1.0, presence_penalty=0.5, logprobs=2)
    assert _request(top_k=3, top_p=0.5, min_p=0.5).temperature == 0
    assert _request(temperature=2.0, top_k=1).temperature == 0
    assert _request(min_new_tokens=3).stops == ()
    assert _request(eos=(9, 4), stop_token_ids=(7,)).stops == (4, 7, 9)
    assert _request(seed=5).params.seed == 5
    assert _request().params.seed is not None


def test_wrong_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        _request(prompt=())
    with pytest.raises(ValueError, match=r"prompt.*128"):
        _request(prompt=(128,))
    with pytest.raises(ValueError, match="stop strings"):
        _request(stop=("a",))


def test_wrong_sizes_are_refused(runner: Runner) -> None:
    for rows in (0, 257):
        with pytest.raises(ValueError, match=f"budget {rows} is out of range: 1 to 256"):
            FixedBudget(rows)
    with pytest.raises(ValueError, match=r"without a draft .* budget is 1, got 2"):
        runner(budget=2)
    for rows in (0, 257):
        with pytest.raises(ValueError, match=f"(1 to 256 rows|at least 1), got {rows}"):
            runner(prefill_rows=rows)
    with pytest.raises(ValueError, match="prompt_rows 7 is below prefill_rows 8"):
        RunnerSettings(memory=1, prefill_rows=8, prompt_rows=7)
    for name in ("memory", "slots", "page", "prefill_rows", "prompt_rows"):
        sizes = {"memory": 1, name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            RunnerSettings(**sizes)


def test_memory_without_a_page_is_refused(tiny_stack: DecoderStack) -> None:
    with pytest.raises(ValueError, match="1 bytes hold no page"):
        RoundRunner(tiny_stack, None, RunnerSettings(memory=1))


def test_a_run_is_closed_before_the_next_begins(runner: Runner, answer: Answer) -> None:
    made = runner()
    run = made.run([_request(max_new_tokens=9)])
    first = next(run)
    assert first.tokens
    with pytest.raises(RuntimeError, match="another run is under way"):
        next(made.run([_request()]))
    run.close()
    assert made.tables.num_free == made.pages
    found = answer(made, [(1, 2)], SamplingParams(max_new_tokens=9))[0]
    assert found.tokens[: len(first.tokens)] == list(first.tokens)
    made.run([_request()])
    assert answer(made, [(1, 2)], SamplingParams(max_new_tokens=9))[0].tokens == found.tokens


def test_nan_in_the_targets_logits_names_the_request(
    runner: Runner, answer: Answer, tiny_model: Callable[..., Any]
) -> None:
    """The rows of token 77 are NaN; the request that never meets it is not to blame."""
    model = tiny_model("qwen3", tie_word_embeddings=False)
    model.get_input_embeddings().weight[77] = torch.nan
    made = runner(stack=stack_of_model(model, taps=(0, 1, 3)))
    params = SamplingParams(max_new_tokens=3)
    with pytest.raises(NonFiniteLogitsError, match=r"request 1: .*after 2 tokens"):
        answer(made, [(1, 2), (3, 77)], params)
    assert made.tables.num_free == made.pages
    assert len(answer(made, [(1, 2)], params)[0].tokens) == 3


def test_few_sizes_are_captured_on_a_gpu() -> None:
    """Sizes hold what they are asked for; nothing here needs the device."""
    programs = RoundPrograms(torch.device("cuda"), captured=True, slots=12, pages=9)
    assert programs.mode == "graphs"
    sizes = set()
    for requests in range(1, 13):
        for budget in range(1, 257):
            rows = requests * budget
            size = programs.size(requests=requests, rows=rows, tree_rows=budget, pages=2)
            assert requests <= size.requests <= min(2 * requests, 12)
            assert rows <= size.rows <= max(2 * rows, 1)
            assert budget <= size.tree_rows <= 256
            assert size.pages == 9
            sizes.add(size)
    assert len(sizes) < 200
    assert [rows_bucket(rows) for rows in (1, 3, 64, 65, 257)] == [1, 4, 64, 96, 384]
    passes = set()
    for requests in range(1, 13):
        for longest in range(1, 257, 5):
            rows = min(requests * longest, 1024)
            one = programs.prompt_size(
                requests=requests, rows=rows, longest=longest, most_rows=1024, most_longest=256,
                pages=2,
            )  # fmt: skip
            assert requests <= one.requests <= min(2 * requests, 12) and one.pages == 9
            assert rows <= one.rows <= max(2 * rows, 128) and longest <= one.longest <= 256
            passes.add(one)
    assert len(passes) < 40
