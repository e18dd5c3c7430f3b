"""RecordedRun: the kernels of one batch, recorded once and repeated with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .run import DeviceRun, Topology
from .state import Fanouts, Sizes, state_words

if TYPE_CHECKING:
    from ...accelerator import Accelerator
    from ...graph.minibatch import MiniBatch


class RecordedRun:
    """A batch's whole way through the device in one launch, with its copies in and out, for so many
    seeds.

    A batch of three hops is 35 launches and allocations of 1.6 ms of Python (H100, measured), all
    of which a training step competes with for the interpreter's lock; repeating them takes a tenth.
    The buffers, for the largest sizes that a batch can have, are kept, and batches are copied out
    of them: begin a next one when :meth:`batch` has been called.

    Call where the stream is in use on which it is to be repeated.

    Args:
        accelerator, topology, fanouts, dtype: See ``DeviceRun``.
        count: Number of seeds; one at least.

    Raises:
        OutOfMemory: The device has no room for the buffers.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        topology: Topology,
        fanouts: Fanouts,
        count: int,
        dtype: torch.dtype,
    ) -> None:
        self._accelerator = accelerator
        self._fanouts = fanouts
        self._count = count
        self._run = DeviceRun(accelerator, topology, fanouts, dtype, keeps=True)
        words = fanouts.words
        self._given = accelerator.host_memory((words + count) * 8).view(torch.int64)
        self._state = accelerator.empty((words + count,), torch.int64)
        self._sizes = accelerator.host_memory(words * 8).view(torch.int64)
        self._given.copy_(
            state_words(
                fanouts, torch.zeros(count, dtype=dtype, device="cpu"), [0] * len(fanouts.picks)
            )
        )
        self._repeat = accelerator.recorded(self._enqueue)

    @staticmethod
    def fits(fanouts: Fanouts, count: int, num_nodes: int) -> bool:
        """Whether no hop of such batches has a size that the host must read first."""
        return count > 0 and num_nodes > 0 and fanouts.reads_no_size(count, count + num_nodes)

    def begin(self, seeds: Tensor, keys: Sequence[int]) -> Sizes:
        """Enqueue the batch of ``seeds``, as many as promised, and of the key of each hop."""
        self._given.copy_(state_words(self._fanouts, seeds, keys))
        self._repeat()
        return Sizes(self._sizes, self._accelerator.current_stream.record())

    def batch(self, sizes: Sizes) -> MiniBatch:
        """The batch, when its sizes are there."""
        return self._run.batch(sizes)

    def _enqueue(self) -> None:
        self._state.copy_(self._given, non_blocking=True)
        self._run.begin(self._state, self._count)
        for hop in range(len(self._fanouts.picks)):
            self._run.hop(hop)
        self._sizes.copy_(self._state[: len(self._sizes)], non_blocking=True)
