"""The rows of each step, drawn from the corpus epoch by epoch."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from jetflow_train.packing import Batch, build_batch, pack
from jetflow_train.shards import Corpus
from jetflow_train.train_config import TrainConfig

Rows = list[NDArray[np.int64]]


class Feed:
    """Batches that depend on the seed, the step and the place among the processes alone.

    Args:
        corpus: what the target wrote.
        config: settings.
        depth: deepest depth of a block.
        rank: number of this process.
        processes: number of processes that share a step's rows.

    Raises:
        ValueError: the rows of a step cannot be shared among the processes.
    """

    def __init__(
        self, corpus: Corpus, config: TrainConfig, depth: int, rank: int, processes: int
    ) -> None:
        self.piece_rows = config.rows_of_a_piece(processes)
        self._corpus, self._config, self._depth, self._rank = corpus, config, depth, rank
        self._epoch = -1
        self._rows: Rows = []
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="pack")
        self._next: tuple[int, Future[Rows]] | None = None

    def check(self) -> None:
        """Looks whether the data is enough for a step.

        Raises:
            ValueError: the corpus does not fill the rows of one step.
        """
        self.sequences(0)

    def batch(self, step: int, piece: int = 0) -> Batch:
        """This process's rows of one piece of a step."""
        config = self._config
        first = (self._rank * config.pieces + piece) * self.piece_rows
        return build_batch(
            self._corpus,
            self.sequences(step)[first : first + self.piece_rows],
            width=config.width,
            anchors=config.anchors,
            depth=self._depth,
            key=(config.seed, step),
            first_row=first,
            prefix_fill=config.prefix_fill,
        )

    def sequences(self, step: int) -> Rows:
        """Numbers of the sequences in each row of a step, over all processes.

        Raises:
            ValueError: the corpus does not fill the rows of one step.
        """
        rows = self._config.rows
        if self._epoch < 0:
            self._load_epoch(0)
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._load_epoch(epoch)
        # Epochs differ by a few rows in length; all count as long as the first.
        place %= len(self._rows) // rows
        return self._rows[place * rows : (place + 1) * rows]

    def _load_epoch(self, epoch: int) -> None:
        config = self._config
        self._rows = self._packed(epoch)
        number = len(self._rows) // config.rows
        if number < 1:
            raise ValueError(
                f"the data fills {len(self._rows)} rows of {config.width} tokens, a step needs "
                f"{config.rows}: more data, or a smaller width ({config.width}) or fewer rows "
                f"({config.rows})"
            )
        if epoch == 0:
            self._per_epoch = number
        self._epoch = epoch

    def _packed(self, epoch: int) -> Rows:
        # Packing takes seconds: the next epoch is packed while this one trains.
        def start(number: int) -> Future[Rows]:
            config = self._config
            return self._packer.submit(pack, self._corpus, config.width, config.seed, number)

        ready = self._next[1] if self._next and self._next[0] == epoch else start(epoch)
        rows = ready.result()
        self._next = (epoch + 1, start(epoch + 1))
        return rows
