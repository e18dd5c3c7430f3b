"""Pipelined: what our two PyG loaders have in common: arguments, epochs, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..cache.budget import Budget
from ..cache.policies import resolve_policy
from ..cache.policy import Policy
from ..device import resolve_device
from ..features.precision import parse_cache_dtype
from ..integers import as_integer
from ..pipeline import EpochControls, LoaderStats, PipelineOptions
from .engine import Engine, Workload
from .order import order_of
from .sampler import NeighborSampler
from .view import Viewed

if TYPE_CHECKING:
    from ..cache.plan import CachePlans

__all__ = ["LoadingOptions", "Pipelined"]


@dataclass(frozen=True)
class LoadingOptions:
    """What our loaders take beyond PyG's arguments."""

    cache: Any
    cache_policy: str | Policy
    cache_dtype: str | torch.dtype | None
    prefetch: int
    seed: int | None
    device: Any


class Pipelined(EpochControls):
    """Base of our loaders, in front of PyG's own: iterates through an engine.

    Subclasses make ``_view`` before PyG's constructor runs, and call :meth:`_begin` after it.
    """

    _view: Any
    data = Viewed()
    input_data = Viewed()
    transform = Viewed()
    transform_sampler_output = Viewed()
    custom_cls = Viewed()

    def _begin(self, options: LoadingOptions, filter_fn: Any) -> None:
        """Make the engine, of PyG's arguments as they were checked."""
        loader: Any = self
        order = order_of(loader, options.seed)
        device = None if options.device is None else resolve_device(options.device)
        prefetch = as_integer("prefetch", options.prefetch)
        ours = isinstance(self._view.sampler, NeighborSampler)
        # What the user wrote stays in the reader's thread, with its random state, unless workers are asked for.
        ahead = ours or loader.num_workers > 0
        self._engine = Engine(
            self._view,
            filter_fn,
            self._view.sampler,
            order,
            workload=self._workload(order),
            budget=Budget.parse(options.cache),
            policy=resolve_policy(options.cache_policy),
            device=device,
            options=PipelineOptions(loader.num_workers, prefetch) if ahead else PipelineOptions(0, 0),
            cache_dtype=parse_cache_dtype(options.cache_dtype),
        )
        self._epochs = self._engine.epochs

    def _workload(self, order: Any) -> Workload:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        loader: Any = self
        return self._engine.start(loader.worker_init_fn if loader.num_workers else None)

    @property
    def stats(self) -> LoaderStats:
        """Rows, bytes, hits and seconds by stage, tier and field, for each epoch and in total; prints as a table."""
        return self._engine.stats

    @property
    def cache_plan(self) -> CachePlans:
        """What the static cache holds of each type: rows, bytes and what they should save; prints as a table."""
        return self._engine.fields.plans

    def invalidate_cache(self) -> None:
        """Forget cached rows: for changes nobody can see (writes through NumPy views, by other processes)."""
        self._engine.fields.invalidate()

    def check_worker_number_rationality(self) -> None:
        """Nothing to warn of: workers are threads (torch would warn of that many processes)."""
