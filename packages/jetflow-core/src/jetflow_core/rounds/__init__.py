"""Whole rounds on the device: static tensors, no host wait, one graph for each size."""

from jetflow_core.rounds.auto.choice import AutoBudget, Choice
from jetflow_core.rounds.auto.costs import RoundCosts
from jetflow_core.rounds.budgets import Budgets, FixedBudget, LiveBatch, Shares
from jetflow_core.rounds.draft import CommittedRows, DraftInputs, NoDraft, RoundDrafter
from jetflow_core.rounds.find import RoundBackend, round_ops_for
from jetflow_core.rounds.head_round import HeadRound
from jetflow_core.rounds.jobs import Step
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.requests import Finished, NotOnDevice, RoundRequest
from jetflow_core.rounds.results import (
    AcceptedBatch,
    KeptRows,
    PackedTrees,
    RoundLines,
    TopTokens,
    TreeBatch,
)
from jetflow_core.rounds.round import ImposedPicks
from jetflow_core.rounds.runner import RoundRunner
from jetflow_core.rounds.settings import RunnerSettings, row_bytes
from jetflow_core.rounds.torch_ops import TorchRoundOps

__all__ = [
    "AcceptedBatch",
    "AutoBudget",
    "Budgets",
    "Choice",
    "CommittedRows",
    "DraftInputs",
    "Finished",
    "FixedBudget",
    "HeadRound",
    "ImposedPicks",
    "KeptRows",
    "LiveBatch",
    "NoDraft",
    "NotOnDevice",
    "PackedTrees",
    "RoundBackend",
    "RoundCosts",
    "RoundDrafter",
    "RoundLines",
    "RoundOps",
    "RoundRequest",
    "RoundRunner",
    "RunnerSettings",
    "Shares",
    "Step",
    "TopTokens",
    "TorchRoundOps",
    "TreeBatch",
    "round_ops_for",
    "row_bytes",
]
