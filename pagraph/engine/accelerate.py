"""Hugging Face accelerate: our loaders are kept as they are, and shard their seeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..seeds.keys import Ranks
from .epochs import EpochIterator


def launched() -> Ranks | None:
    """This process's rank in accelerate; None if no ``Accelerator`` was made."""
    # Not imported here: that takes a second, and a script that uses it has imported it.
    if "accelerate" not in sys.modules:
        return None
    from accelerate.state import PartialState

    # Checked first: the constructor would set up process groups.
    if not PartialState._shared_state:
        return None
    state = PartialState()
    return Ranks(state.process_index, state.num_processes)


class Prepared:
    """Base of loaders that ``Accelerator.prepare`` returns unchanged.

    accelerate rebuilds a torch loader from its dataset and samplers; ours would lose engine, cache
    and seed. It leaves a loader alone that it has already prepared.
    """

    _prepared = False
    # Read by accelerate during iteration.
    end_of_dataloader = False
    # Nothing to cut off: duplicates are not at the end of the last batch.
    remainder = -1
    # ``Accelerator.save_state`` saves the position of loaders that have this.
    use_stateful_dataloader = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by accelerate before it would rebuild the loader; shards the seeds once."""
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
        """Set by accelerate at the end; ignored, as it has been read by then."""

    def _can_be_prepared(self) -> bool:
        return True

    def _share_seeds(self, ranks: Ranks) -> None:
        """Give each process its shard of the seeds, unless they are sharded already."""
        raise NotImplementedError

    def _told(self, batches: EpochIterator[Any]) -> Iterator[Any]:
        """An epoch's batches; reported to accelerate if it has prepared this loader."""
        return self._accelerated(batches) if self._prepared else batches

    def _accelerated(self, batches: EpochIterator[Any]) -> Iterator[Any]:
        """Batches on accelerate's device; the last one always synchronises gradients."""
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
