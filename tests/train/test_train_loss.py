"""Every loss in closed form and in chunks equals torch's own functions under autograd."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_train.loss import LossRows, chunk_losses, chunked_losses, reference_losses
from jetflow_train.objectives import OBJECTIVES, Objective, ObjectiveName, reference_rows
from jetflow_train.train_config import TrainConfig
from torch import Tensor


def _draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=40)
@given(
    name=st.sampled_from(OBJECTIVES),
    temperature=st.floats(0.3, 4.0),
    rows=st.integers(1, 6),
    seed=st.integers(0, 1000),
    sharp=st.sampled_from([1.0, 30.0]),
)
def test_closed_forms_are_the_gradients_of_autograd(
    name: ObjectiveName, temperature: float, rows: int, seed: int, sharp: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    objective = Objective(name, temperature)
    student = (sharp * _draw(generator, rows, 11)).requires_grad_()
    teacher = sharp * _draw(generator, 3, 11)
    index = torch.randint(0, 3, (rows,), generator=generator)
    tokens = torch.randint(0, 11, (rows,), generator=generator)
    plain = reference_rows(objective, student, teacher[index], tokens)
    (wanted,) = torch.autograd.grad(plain.sum(), student)
    logp = objective.teacher(teacher, index, torch.float64)
    found, gradient = objective.rows(student.detach(), logp, tokens)
    assert torch.allclose(found, plain, atol=1e-12, rtol=1e-9)
    assert torch.allclose(gradient, wanted, atol=1e-12, rtol=1e-9)


@settings(max_examples=30)
@given(
    name=st.sampled_from(OBJECTIVES),
    chunks=st.integers(1, 3),
    rows=st.integers(1, 6),
    path=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_chunked_losses_and_gradients_equal_the_reference(
    name: ObjectiveName, chunks: int, rows: int, path: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    objective = Objective(name, 0.7)
    vocab, hidden, rank, teachers = 17, 8, 3, 4
    lm_head = _draw(generator, vocab, hidden)
    out = _draw(generator, vocab, rank).requires_grad_()
    weights = _draw(generator, chunks, rows).abs()
    weights[0, 0] = 0.0
    inputs = LossRows(
        hidden=_draw(generator, chunks, rows, hidden).requires_grad_(),
        parents=_draw(generator, chunks, rows, rank).requires_grad_() if path else None,
        teacher=_draw(generator, chunks, teachers, hidden),
        index=torch.randint(0, teachers, (chunks, rows), generator=generator),
        tokens=torch.randint(0, vocab, (chunks, rows), generator=generator),
        weights=weights,
    )
    learnt = [inputs.hidden] + ([inputs.parents, out] if inputs.parents is not None else [])
    results = []
    for losses in (
        reference_losses(inputs, lm_head, out if path else None, objective),
        chunked_losses(
            inputs, lm_head, out if path else None, partial(chunk_losses, objective=objective)
        ),
    ):
        grads = torch.autograd.grad(2.0 * losses.base + 3.0 * losses.path, learnt)
        results.append([losses.base, losses.path, losses.base_rows, losses.path_rows, *grads])
    for plain, fast in zip(*results, strict=True):
        assert torch.allclose(plain, fast, atol=1e-12, rtol=1e-9)
    assert (results[1][4][0, 0] == 0).all()


def test_what_each_loss_says_of_two_distributions() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]]).clamp(min=1e-30).log().double()
    q = torch.tensor([[0.25, 0.25, 0.5]]).log().double()
    tokens = torch.tensor([1])
    said = {
        name: float(Objective(name).rows(q, p - p.logsumexp(-1, keepdim=True), tokens)[0])
        for name in OBJECTIVES
    }
    assert said["forward_kl"] == pytest.approx(0.6931, abs=1e-4)
    assert said["cross_entropy"] == pytest.approx(1.3863, abs=1e-4)
    assert said["total_variation"] == pytest.approx(0.5)
    assert said["reverse_kl"] > 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "mse"}, "loss 'mse' is unknown: one of forward_kl, reverse_kl"),
        ({"loss_temperature": 0.0}, "temperature 0.0 is out of range"),
        ({"loss_temperature": float("nan")}, "temperature nan is out of range"),
        ({"learning_rate": float("inf")}, "learning_rate must be above 0 and finite"),
        ({"gamma": -1.0}, "gamma must be 0 or above"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)  # type: ignore[arg-type]
