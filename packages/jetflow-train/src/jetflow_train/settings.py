"""Every option of ``jetflow train``, with which a run is started, stored and given again."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from jetflow_core.commands.numbers import REAL, Positive, Real, Seed, whole
from jetflow_core.commands.settings_file import OneOf

from jetflow_train.prompts import check_names, named_sets
from jetflow_train.sinks.choose import TrackerName, check_trackers
from jetflow_train.temperatures import answers_name, check_temperatures, with_greedy

if TYPE_CHECKING:
    from jetflow_core.head.config import HeadConfig

    from jetflow_train.heads import HeadChoice
    from jetflow_train.schedule import Horizon
    from jetflow_train.train_config import TrainConfig

RUN, _HEAD = Group("The run", sort_key=1), Group("The head", sort_key=3)
_LENGTH = Group("Its length", sort_key=2, validator=OneOf("the length of the run"))
_STEP, _LOSS = Group("A step", sort_key=4), Group("Loss and rates", sort_key=5)
# More of anything in one step than any machine holds.
_LARGEST = 65536
_MANY = Parameter(group=RUN, consume_multiple=True, show_default=False)

# What the head is made of, by the name that its own description has for it. Left out of a run,
# such an option follows the stored head that the run begins with, or its default.
HEAD_FIELDS = {
    "layers": "num_layers",
    "block_size": "block_size",
    "input_bridge": "input_bridge",
    "path_rank": "path_rank",
    "path_context": "path_context",
    "candidate_pool": "candidate_pool",
    "causal": "causal",
    "taps": "target_layer_ids",
}
# How a command goes about its run; the run itself is the same with or without.
_PASSING = ("resume", "dry_run")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """The options as they were given; None where one follows something else."""

    data: Annotated[tuple[Path, ...], _MANY]
    """Data folders that this target wrote."""
    out: Annotated[Path, Parameter(group=RUN)]
    """Run folder: settings, state, metrics, `head` and `head-8bit`."""
    target: Annotated[Path | None, Parameter(group=RUN)] = None
    """Folder of the target; the embedded one if left out."""
    start_head: Annotated[Path | None, Parameter(group=RUN)] = None
    """Folder of a stored head whose weights the run begins with; it fixes the head's options."""
    resume: Annotated[bool, Parameter(group=RUN)] = False
    """Go on with the run in `out`."""
    dry_run: Annotated[bool, Parameter(group=RUN)] = False
    """Print the estimate, write an untrained head to `out`/head, and stop."""
    eval_prompts: Annotated[tuple[Path, ...], _MANY] = ()
    """JSONL prompt files, each its own held-out set."""
    eval_limit: Annotated[Positive, Parameter(group=RUN)] = 128
    """Prompts taken from each of them."""
    eval_temperatures: Annotated[tuple[float, ...], REAL, _MANY] = (0.0, 0.7)
    """Of the answers; default 0 (greedy, which the end of a run always evaluates) and 0.7."""
    eval_seconds: Annotated[Real, Parameter(group=RUN)] = 120.0
    """Seconds of training between two evaluations on them; 0 evaluates at the end alone."""
    track: Annotated[tuple[TrackerName, ...], _MANY] = ()
    """Write the figures there too, beside metrics.jsonl."""
    compile: Annotated[bool | None, Parameter(group=RUN)] = None
    """Compile the step's heavy parts; by default on a GPU."""

    cache: Annotated[Path | None, Parameter(group=RUN)] = None
    """File that keeps the target's hidden states, for small data learnt from many times."""

    max_minutes: Annotated[Real | None, Parameter(group=_LENGTH)] = None
    """Horizon in time (without the first, compiling step)."""
    max_steps: Annotated[int | None, whole(1), Parameter(group=_LENGTH)] = None
    """Horizon in steps."""

    layers: Annotated[int | None, whole(1, 256), Parameter(group=_HEAD)] = None
    """Layers of the head; default 3."""
    block_size: Annotated[int | None, whole(2, 1024), Parameter(group=_HEAD)] = None
    """Slots of a block, the root's included; default 16."""
    input_bridge: Annotated[bool | None, Parameter(group=_HEAD)] = None
    """Every slot of a block also reads the root and the context's last row; default true."""
    path_rank: Annotated[int | None, whole(0, 16384), Parameter(group=_HEAD)] = None
    """Rank of the path term; 0 leaves it out; default 128."""
    path_context: Annotated[bool | None, Parameter(group=_HEAD)] = None
    """The path term also reads the hidden state of its depth; default true."""
    candidate_pool: Annotated[int | None, whole(0, 16384), Parameter(group=_HEAD)] = None
    """Tokens of a depth from which drafted paths choose its candidates; 0: none; default 64."""
    causal: Annotated[bool | None, Parameter(group=_HEAD)] = None
    """A slot of the block sees no later slot; default true."""
    taps: Annotated[
        tuple[int, ...] | None, whole(0, 16384), Parameter(group=_HEAD, consume_multiple=True)
    ] = None
    """Layers of the target that the head reads, from 0; default five, evenly spread."""
    init: Annotated[Literal["target", "random"] | None, Parameter(group=_HEAD)] = None
    """What the layers of a fresh head start as: the target's last layers (default) or noise."""

    rows: Annotated[int, whole(1, _LARGEST), Parameter(group=_STEP)] = 32
    """Packed rows a step, over all processes."""
    pieces: Annotated[int, whole(1, _LARGEST), Parameter(group=_STEP)] = 1
    """Parts in which a process works through its rows; more need less memory."""
    width: Annotated[int, whole(1, _LARGEST), Parameter(group=_STEP)] = 512
    """Tokens of a row."""
    anchors: Annotated[int, whole(1, _LARGEST), Parameter(group=_STEP)] = 80
    """Blocks a row."""
    prefix_fill: Annotated[Real, Parameter(group=_STEP)] = 0.0
    """Share of the blocks that begin with true tokens, for a second pass over drafted trees."""
    chunks: Annotated[int, whole(1, _LARGEST), Parameter(group=_STEP)] = 4
    """Pieces of the loss; more need less memory."""
    shard: Annotated[Literal["none", "head", "all"], Parameter(group=_STEP)] = "none"
    """What torchrun's processes hold a part of each: the head, or all: the target's layers too."""
    seed: Annotated[Seed, Parameter(group=_STEP)] = 0
    """Of everything random."""

    loss: Annotated[
        Literal["forward_kl", "reverse_kl", "cross_entropy", "total_variation"],
        Parameter(group=_LOSS),
    ] = "forward_kl"
    """What is made small, over the full vocabulary."""
    loss_temperature: Annotated[Real, Parameter(group=_LOSS)] = 1.0
    """Divides the logits of both sides in the loss."""
    gamma: Annotated[Real, Parameter(group=_LOSS)] = 4.0
    """Depth d weighs exp(-(d - 1) / gamma); 0 weighs all alike."""
    optimizer: Annotated[Literal["muon", "adamw"] | None, Parameter(group=_LOSS)] = None
    """Of the layers' matrices; default muon, which needs whole ones: with --shard adamw."""
    learning_rate: Annotated[Real, Parameter(group=_LOSS)] = 1.5e-3
    """Peak rate of the head."""
    path_learning_rate: Annotated[Real, Parameter(group=_LOSS)] = 3e-3
    """Peak rate of the path term."""
    warmup: Annotated[Real, Parameter(group=_LOSS)] = 0.04
    """Share of the run in which the rates rise."""
    floor: Annotated[Real, Parameter(group=_LOSS)] = 0.06
    """Share of the peak rates at the end."""
    clip: Annotated[Real, Parameter(group=_LOSS)] = 1.0
    """Largest norm of a step's gradient."""

    def check(self) -> None:
        """Refuses what can be refused without importing anything heavy.

        Raises:
            ValueError: naming the option.
        """
        if not 0 <= self.eval_seconds < float("inf"):
            raise ValueError(
                f"eval-seconds {self.eval_seconds} is out of range: 0 or above, and finite"
            )
        if self.shard == "all" and self.eval_prompts:
            raise ValueError(
                "--shard all leaves no process with a whole target to evaluate with: leave out "
                "--eval-prompts, and evaluate the finished head"
            )
        self._check_prefix_fill()
        if self.dry_run and self.resume:
            raise ValueError("--dry-run starts nothing that --resume could go on with")
        self._check_evaluations()
        check_trackers(self.track)

    def _check_evaluations(self) -> None:
        check_temperatures(self.eval_temperatures, "eval-temperature")
        sets, asked = named_sets(self.eval_prompts), with_greedy(self.eval_temperatures)
        check_names([answers_name(name, each) for name in sets for each in asked], "evaluations")

    def _check_prefix_fill(self) -> None:
        if not 0 <= self.prefix_fill < 1:
            raise ValueError(
                f"prefix-fill {self.prefix_fill} is out of range: 0 or above, and below 1"
            )
        if self.prefix_fill and self.causal is False:
            raise ValueError(
                f"--prefix-fill {self.prefix_fill} needs a causal head: in a bidirectional one "
                "true tokens would see the slots that are to predict what follows them"
            )
        if self.prefix_fill and self.block_size is not None and self.block_size < 3:
            raise ValueError(
                f"--prefix-fill {self.prefix_fill} needs a block-size of at least 3, got "
                f"{self.block_size}: no depth is left behind a true token"
            )

    def train_config(self) -> TrainConfig:
        """What changes what a run learns.

        Raises:
            ValueError: naming the field and its range.
        """
        from jetflow_train.train_config import TrainConfig

        given = {each.name: getattr(self, each.name) for each in fields(TrainConfig)}
        return TrainConfig(**{**given, "optimizer": self._optimizer()})

    def _optimizer(self) -> Literal["muon", "adamw"]:
        return self.optimizer or ("muon" if self.shard == "none" else "adamw")

    def horizon(self) -> Horizon:
        """The length of the run.

        Raises:
            ValueError: neither or both lengths are given, or it is not above 0.
        """
        from jetflow_train.schedule import Horizon

        return Horizon(minutes=self.max_minutes, steps=self.max_steps)

    def head_options(self) -> dict[str, Any]:
        """The options of the head's shape that were given, by their own names."""
        given = {name: getattr(self, name) for name in HEAD_FIELDS}
        return {name: value for name, value in given.items() if value is not None}

    def head_choice(self) -> HeadChoice:
        """The shape of a fresh head.

        Raises:
            ValueError: naming the field and its range.
        """
        from jetflow_train.heads import HeadChoice

        given = {HEAD_FIELDS[name]: value for name, value in self.head_options().items()}
        given["taps"] = given.pop("target_layer_ids", ())
        filled = self.prefix_fill > 0
        return HeadChoice(**given, prefix_filled=filled, init=self.init or "target")

    def resolved(self, head: HeadConfig) -> TrainSettings:
        """The same settings with nothing of ``head`` left to defaults."""
        shape = {name: getattr(head, field) for name, field in HEAD_FIELDS.items()}
        return replace(self, optimizer=self._optimizer(), **shape)

    def stored(self) -> dict[str, Any]:
        """Keys and values of the file with which the same run is given again."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name.replace("_", "-"): value
            for name, value in values.items()
            if name not in _PASSING and value is not None and value != ()
        }
