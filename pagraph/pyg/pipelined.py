"""Pipelined: what our two PyG loaders have in common: arguments, epochs, statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from ..accelerator.cuda import resolve_device
from ..engine import PipelineOptions
from ..engine.engine import Engine, LoaderControls
from ..features.narrow import parse_cache_dtype
from ..ranking.policies import resolve_policy
from ..ranking.policy import Policy
from ..seeds.torch_order import StreamOrder, order_of, tell_epoch
from ..system.budget import Budget
from ..system.checks import as_integer
from .joining import Joiner
from .sampler import NeighborSampler
from .sending import Sender
from .source import SubgraphSource
from .view import Viewed
from .workers import ThreadWorkers

if TYPE_CHECKING:
    from ..ranking.workload import Workload

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


class Pipelined(LoaderControls, ThreadWorkers):
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
        self._device = None if options.device is None else resolve_device(options.device)
        self._engine: Engine[Any] = Engine(
            self._workload(order),
            policy=resolve_policy(options.cache_policy),
            budget=Budget.parse(options.cache),
            options=self._pipeline_options(),
            device=self._device,
            cache_dtype=parse_cache_dtype(options.cache_dtype),
        )
        accelerator = self._engine.accelerator
        self._sender = None if accelerator is None else Sender(accelerator)
        self._joiner = Joiner(self._view, self._engine.fields, filter_fn)
        self._joiner.declare()
        self._engine.use(self._source())

    def _workload(self, order: Any) -> Workload:
        raise NotImplementedError

    def _pipeline_options(self) -> PipelineOptions:
        """What the user wrote stays in the reader's thread, with its random state, unless workers are asked for."""
        workers, prefetch = as_integer("num_workers", self.num_workers), as_integer("prefetch", self._options.prefetch)
        ours = isinstance(self._view.sampler, NeighborSampler) and not self._streams
        return PipelineOptions(workers, prefetch) if ours or workers else PipelineOptions(0, 0)

    def _source(self) -> SubgraphSource:
        loader: Any = self
        return SubgraphSource(
            self._view,
            self._joiner,
            self._engine,
            self._device,
            pins=bool(loader.pin_memory) and self._device is None and torch.cuda.is_available(),
            # What the user wrote stays in the reader's thread unless workers are asked for.
            calls_stores_ahead=self._pipeline_options().workers > 0,
            sender=self._sender,
        )

    def __getstate__(self) -> dict[str, Any]:
        made = ("_engine", "_joiner", "_sender", "collate_fn")
        state = {name: value for name, value in vars(self).items() if name not in made}
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
        worker_init_fn = self.worker_init_fn if self.num_workers else None
        return self._engine.start(self._source(), options=self._pipeline_options(), worker_init_fn=worker_init_fn)

    def set_epoch(self, epoch: int) -> None:
        """See ``LoaderControls.set_epoch``; a sampler that has a ``set_epoch`` is told, too.

        Raises:
            TypeError: ``epoch`` is not an integer.
            ValueError: ``epoch`` is negative.
        """
        super().set_epoch(epoch)
        loader: Any = self
        tell_epoch(loader.batch_sampler, epoch)

    def check_worker_number_rationality(self) -> None:
        """Nothing to warn of: workers are threads (torch would warn of that many processes)."""


def _is_pygs(method: Any) -> bool:
    return str(getattr(method, "__module__", None)).startswith("torch_geometric.")
