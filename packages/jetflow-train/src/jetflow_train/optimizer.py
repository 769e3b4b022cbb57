"""Torch's own optimizers over a head: AdamW for all of it, or Muon for its layers' matrices.

A step whose gradient is not finite changes nothing, and no step waits for the host to know.
"""

from __future__ import annotations

from typing import Any

import torch
from jetflow_core.head.model import DraftHead
from torch import Tensor, nn

from jetflow_train.train_config import TrainConfig


class HeadOptimizer:
    """What makes the steps of a run.

    Muon moves the matrices of the layers and of the fusion along an orthogonal form of their
    momentum, scaled to the size of AdamW's steps, so that one learning rate fits both. Everything
    else (norms, vectors, the bridge, the path term, whose output is as wide as the vocabulary)
    stays with AdamW; the path term has a rate of its own.

    Args:
        head: in training; sharded only with AdamW.
        config: which optimizer, and the peak rates.
    """

    def __init__(self, head: DraftHead, config: TrainConfig) -> None:
        path = [] if head.path is None else list(head.path.parameters())
        turned = muon_parameters(head) if config.optimizer == "muon" else []
        apart = {id(parameter) for parameter in (*path, *turned)}
        rest = [parameter for parameter in head.parameters() if id(parameter) not in apart]
        groups = [_group(rest, config.learning_rate)]
        if path:
            groups.append(_group(path, config.path_learning_rate))
        # Fused, so that it can be told on the device to skip a step.
        self.adamw = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.muon = (
            torch.optim.Muon(
                [_group(turned, config.learning_rate)],
                lr=config.learning_rate,
                weight_decay=0.0,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
            )
            if turned
            else None
        )
        self._broken: Tensor | None = None

    @property
    def parts(self) -> list[torch.optim.Optimizer]:
        """Torch's optimizers that take part."""
        return [self.adamw] if self.muon is None else [self.adamw, self.muon]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of all parts; ``peak`` is the highest rate of each."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """Moments of all parameters."""
        return {key: value for part in self.parts for key, value in part.state.items()}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def arm(self, broken: Tensor) -> None:
        """Skip the next step where ``broken``, a bool on the device, is true."""
        # As torch's gradient scaler does: fused optimizers look for it, no base class names it.
        self.adamw.found_inf = broken.float()  # type: ignore[attr-defined]
        self._broken = broken

    def step(self) -> None:
        """Take a step, or none after ``arm`` with a true flag."""
        self.adamw.step()
        if self.muon is not None:
            _step_unless(self._broken, self.muon)
        self._broken = None


def muon_parameters(head: DraftHead) -> list[nn.Parameter]:
    """The matrices that Muon moves."""
    return [
        parameter
        for name, parameter in head.named_parameters()
        if parameter.ndim == 2 and name.startswith(("layers.", "fc."))
    ]


def _group(parameters: list[nn.Parameter], peak: float) -> dict[str, Any]:
    return {"params": parameters, "peak": peak}


@torch.no_grad()
def _step_unless(broken: Tensor | None, muon: torch.optim.Optimizer) -> None:
    """A step of Muon, which knows no flag to skip it: taken back where ``broken`` is true."""
    if broken is None:
        muon.step()
        return
    parameters = [each for group in muon.param_groups for each in group["params"]]
    weights = [each.clone() for each in parameters]
    moments = [
        {name: moment.clone() for name, moment in muon.state[each].items()} for each in parameters
    ]
    muon.step()
    for parameter, weight, kept in zip(parameters, weights, moments, strict=True):
        parameter.copy_(torch.where(broken, weight, parameter))
        for name, moment in muon.state[parameter].items():
            # One that this very step made begins at zero again.
            before = kept.get(name, torch.zeros_like(moment))
            moment.copy_(torch.where(broken, before, moment))
