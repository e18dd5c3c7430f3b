"""WholeStep: a training step recorded once on a GPU, and replayed for all batches of one size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ._postponed import collection_later
from .system.checks import as_integer

T = TypeVar("T")


class WholeStep(Generic[T]):
    """Runs a training step; on a GPU, forward, backward and optimizer become one CUDA graph.

    A step of a small model is hundreds of launches, which Python issues more slowly than the GPU
    runs them; a replay is a single launch. It needs batches of fixed shapes: those of the first
    size are copied into the graph's own tensors, and the graph is replayed. The first steps, and
    the rare batches of other sizes, run eagerly. On the CPU all steps do.

    Args:
        step: Trains on a batch and returns tensors, such as the detached loss, or None. It must do
            the same work on the GPU for all batches of a size: no ``.item()``, no boolean-mask
            indexing, no calls of the loader. Call ``optimizer.zero_grad()`` in it, before
            ``backward()``; an optimizer such as Adam needs ``capturable=True``, and a learning rate
            that changes must be a tensor.
        warmup: Steps to run eagerly before one is recorded, at least 1; 11 with
            ``DistributedDataParallel``.

    Example:
        >>> import torch
        >>> from pagraph import Loader, NeighborSampler, WholeStep
        >>> from pagraph.datasets import sbm
        >>> graph = sbm(100)
        >>> sampler = NeighborSampler([3])
        >>> options = {"batch_size": 40, "shapes": "fixed"}
        >>> loader = Loader(graph, range(100), sampler, fields=["feat"], **options)
        >>> step = WholeStep(lambda batch: batch.features["feat"].sum() > 0)
        >>> len([step(batch) for batch in loader])
        3
    """

    def __init__(self, step: Callable[[Any], T], *, warmup: int = 3) -> None:
        self._step = step
        self._left = as_integer("warmup", warmup, least=1)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._own: list[Tensor] = []
        self._result: Any = None

    def __call__(self, batch: Any) -> T:
        """Train on a batch.

        Returns:
            What ``step`` returns. Of a replay these are always the same tensors, which the next one
            overwrites.

        Raises:
            ValueError: The batch is not of a loader with ``shapes="fixed"``.
        """
        number = getattr(batch, "shape_number", None)
        if number is None:
            raise ValueError(
                f"batch must be of a loader with shapes='fixed', got {type(batch).__name__} of a "
                "size of its own"
            )
        given = _tensors_of(batch)
        if number or not all(tensor.is_cuda for tensor in given):
            return self._step(batch)
        if self._left:
            self._left -= 1
            return self._beside(batch)
        if self._graph is None:
            self._record(batch)
        assert self._graph is not None
        torch._foreach_copy_(self._own, given)
        self._graph.replay()
        result: T = self._result
        return result

    def _beside(self, batch: Any) -> T:
        """The step on another stream: what autograd remembers of the streams of gradients must not
        be the stream that the graph is replayed on."""
        here = torch.cuda.current_stream()
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            result = self._step(batch)
        here.wait_stream(side)
        return result

    def _record(self, batch: Any) -> None:
        """Record the step on a copy of the batch; this does not run it."""
        own = copy.copy(batch).apply(torch.clone)
        graph = torch.cuda.CUDAGraph()
        # The loader's threads allocate and ask for events meanwhile.
        recorded = torch.cuda.graph(graph, capture_error_mode="thread_local")
        # A finalizer that waits for the device would spoil what is recorded.
        with collection_later(), recorded:
            self._result = self._step(own)
        self._own = _tensors_of(own)
        self._graph = graph


def _tensors_of(batch: Any) -> list[Tensor]:
    """All tensors of a batch of ours or of PyG's, always in the same order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    copy.copy(batch).apply(note)
    return found
