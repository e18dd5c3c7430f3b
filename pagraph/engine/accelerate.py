"""Hugging Face accelerate over our loaders: they stay themselves, and divide their seeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..seeds.keys import Ranks
from .epochs import EpochIterator


def launched() -> Ranks | None:
    """This process's rank among accelerate's; None where no ``Accelerator`` was made."""
    # Imported by a script that uses it, or not at all: it takes a second.
    if "accelerate" not in sys.modules:
        return None
    from accelerate.state import PartialState

    # Asked first: the constructor would begin to set up processes.
    if not PartialState._shared_state:
        return None
    state = PartialState()
    return Ranks(state.process_index, state.num_processes)


class Prepared:
    """Base of loaders that ``Accelerator.prepare`` takes as they are.

    Of a torch loader accelerate makes another, from its dataset and its samplers: for ours that
    would be one without engine, cache and seed. Of a loader that it has prepared before it makes
    none.
    """

    _prepared = False
    # What accelerate reads of a loader that is being iterated.
    end_of_dataloader = False
    # No rows to cut off: what comes twice is not at the end of the last batch.
    remainder = -1
    # ``Accelerator.save_state`` keeps the place of loaders that have this.
    use_stateful_dataloader = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by accelerate before it makes a loader of its own; divides the seeds once."""
        ranks = launched()
        if ranks is None or not self._can_be_prepared():
            return False
        if not self._prepared:
            if ranks.size > 1:
                self._share_seeds(ranks)
            self._prepared = True
            self.use_stateful_dataloader = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Set by accelerate when it is through; it has been read by then."""

    def _can_be_prepared(self) -> bool:
        return True

    def _share_seeds(self, ranks: Ranks) -> None:
        """Give each process its share of the seeds, unless they are divided already."""
        raise NotImplementedError

    def _told(self, batches: EpochIterator[Any]) -> Iterator[Any]:
        """An epoch's batches, told to accelerate where it has prepared this loader."""
        return self._accelerated(batches) if self._prepared else batches

    def _accelerated(self, batches: EpochIterator[Any]) -> Iterator[Any]:
        """Batches on accelerate's device. At the last one gradients are synchronised, however many
        were to be accumulated."""
        from accelerate.state import GradientState, PartialState
        from accelerate.utils import send_to_device

        loader: Any = self
        state = GradientState()
        device = PartialState().device
        loader.end_of_dataloader = False
        state._add_dataloader(loader)
        try:
            for batch in batches:
                loader.end_of_dataloader = batches.at_end
                yield batch if device.type == "cpu" else send_to_device(batch, device)
        finally:
            state._remove_dataloader(loader)
