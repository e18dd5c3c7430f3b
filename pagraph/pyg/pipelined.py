"""Pipelined: what our two PyG loaders have in common: arguments, epochs, statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from ..cache.budget import Budget
from ..cache.policies import resolve_policy
from ..cache.policy import Policy
from ..device import resolve_device
from ..features.precision import parse_cache_dtype
from ..integers import as_integer
from ..pipeline import EpochControls, LoaderStats, PipelineOptions
from .engine import Engine
from .order import order_of
from .sampler import NeighborSampler
from .stream_order import StreamOrder
from .torch_samplers import tell_epoch
from .view import Viewed
from .workers import ThreadWorkers

if TYPE_CHECKING:
    from ..cache.plan import CachePlans
    from .workload import Workload

__all__ = ["Pipelined", "sampler_of"]

_OF_THE_SAMPLER = (
    "num_neighbors",
    "subgraph_type",
    "replace",
    "disjoint",
    "temporal_strategy",
    "time_attr",
    "weight_attr",
    "is_sorted",
    "directed",
)


def sampler_of(arguments: Mapping[str, Any]) -> Any:
    """The sampler that a loader was given, or ours made of the loader's arguments."""
    if arguments["neighbor_sampler"] is not None:
        return arguments["neighbor_sampler"]
    return NeighborSampler(arguments["data"], **{name: arguments[name] for name in _OF_THE_SAMPLER})


@dataclass(frozen=True)
class _LoadingOptions:
    """What our loaders take beyond PyG's arguments."""

    cache: Any
    cache_policy: str | Policy
    cache_dtype: str | torch.dtype | None
    prefetch: int
    seed: int | None
    device: Any


class Pipelined(EpochControls, ThreadWorkers):
    """Base of our loaders, in front of PyG's own: iterates through an engine.

    Subclasses make ``_view`` before PyG's constructor runs, and call :meth:`_begin` after it. A user's subclass with a
    ``filter_fn`` or ``collate_fn`` of its own is iterated by torch, as PyG's would be: with our sampler, but with
    worker processes, and without cache and ``seed``.
    """

    _view: Any
    data = Viewed()
    input_data = Viewed()
    transform = Viewed()
    transform_sampler_output = Viewed()
    custom_cls = Viewed()

    def _remember(self, arguments: Mapping[str, Any]) -> None:
        """Keep arguments as attributes, where Lightning looks for them to make a loader again."""
        for name, value in arguments.items():
            if name not in ("self", "kwargs", "__class__"):
                vars(self).setdefault(name, value)

    def _begin(self, arguments: Mapping[str, Any], filter_fn: Any) -> None:
        """Make the engine, of PyG's arguments as they were checked and of ours among those given."""
        self._remember(arguments)
        options = _LoadingOptions(**{field.name: arguments[field.name] for field in fields(_LoadingOptions)})
        self._start_engine(options, filter_fn)

    def _start_engine(self, options: _LoadingOptions, filter_fn: Any) -> None:
        loader: Any = self
        vars(self).pop("collate_fn", None)  # a method: a loader that refers to itself would wait for the collector
        self._options, self._filter_fn = options, filter_fn
        order = order_of(loader, options.seed)
        self._streams = isinstance(order, StreamOrder)
        self._engine = Engine(
            self._view,
            filter_fn,
            order,
            workload=self._workload(order),
            budget=Budget.parse(options.cache),
            policy=resolve_policy(options.cache_policy),
            device=None if options.device is None else resolve_device(options.device),
            options=self._pipeline_options(),
            cache_dtype=parse_cache_dtype(options.cache_dtype),
            pin_memory=bool(loader.pin_memory),
        )
        self._epochs = self._engine.epochs

    def _workload(self, order: Any) -> Workload:
        raise NotImplementedError

    def _pipeline_options(self) -> PipelineOptions:
        """What the user wrote stays in the reader's thread, with its random state, unless workers are asked for."""
        workers, prefetch = as_integer("num_workers", self.num_workers), as_integer("prefetch", self._options.prefetch)
        ours = isinstance(self._view.sampler, NeighborSampler) and not self._streams
        return PipelineOptions(workers, prefetch) if ours or workers else PipelineOptions(0, 0)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_engine", "_epochs", "collate_fn")}
        try:
            return state | {"_place": self.state_dict()}
        except TypeError:  # a sampler without length
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickled or copied loader: with an engine of its own, at the same place."""
        place = state.pop("_place", None)
        vars(self).update(state)
        self._view = copy.copy(self._view)
        self._start_engine(self._options, self._filter_fn)
        if place is not None:
            self.load_state_dict(place)

    def __iter__(self) -> Iterator[Any]:
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        loader: Any = self
        if not (_is_pygs(loader.collate_fn) and _is_pygs(loader.filter_fn)):  # the engine would pass them by
            theirs: Any = super()
            iterator: Iterator[Any] = theirs._get_iterator()
            return iterator
        return self._engine.start(self.worker_init_fn if self.num_workers else None, self._pipeline_options())

    def set_epoch(self, epoch: int) -> None:
        """See ``EpochControls.set_epoch``; a sampler that has a ``set_epoch`` is told, too.

        Raises:
            TypeError: ``epoch`` is not an integer.
            ValueError: ``epoch`` is negative.
        """
        super().set_epoch(epoch)
        loader: Any = self
        tell_epoch(loader.batch_sampler, epoch)

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

    def close(self) -> None:
        """End the newest pass, if it is not over, and unpin host memory; also done when nobody has the loader any more.

        A pass that begins after it pins it anew.
        """
        self._engine.close()

    def check_worker_number_rationality(self) -> None:
        """Nothing to warn of: workers are threads (torch would warn of that many processes)."""


def _is_pygs(method: Any) -> bool:
    return str(getattr(method, "__module__", None)).startswith("torch_geometric.")
