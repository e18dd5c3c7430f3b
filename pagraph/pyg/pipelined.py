"""Pipelined, the base of our PyG loaders: arguments, worker threads, epochs, statistics."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

import torch
from torch import Tensor

from ..accelerator import Accelerator
from ..accelerator.cuda import check_named, resolve_device, sampler_where_wanted
from ..engine import PipelineOptions, parse_lookahead
from ..engine.accelerate import Prepared
from ..engine.engine import Engine, LoaderControls
from ..engine.envelope import are_fixed
from ..engine.program import DeviceProgram
from ..errors import PipelineError
from ..features.narrow import parse_cache_dtype
from ..ranking.policies import resolve_policy
from ..seeds.keys import Ranks, process_ranks, random_key
from ..seeds.torch_order import StreamOrder, order_of, places_of, tell_epoch
from ..system.budget import Budget, memory_budget
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from ..system.threads import near_cores, starting_workers
from .joining import Joiner, Make
from .package import import_pyg
from .sampler import Draw, KeyedSampler, NeighborSampler
from .source import Sender, SubgraphSource
from .transforms import is_running

import_pyg()
from torch_geometric.loader.mixin import get_numa_nodes_cores  # noqa: E402
from torch_geometric.sampler.base import SubgraphType  # noqa: E402

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import TypeVar

    from ..ranking.workload import Workload
    from ..sampling.gpu.sampler import DeviceSampler
    from .typing import HeteroBatch, NodeBatch, Stores

    D = TypeVar("D", bound=Data | HeteroData | Stores, covariant=True, default=Data)
else:
    # The standard library's TypeVar has no default before Python 3.13.
    from typing import TypeVar

    D = TypeVar("D", covariant=True)


logger = logging.getLogger(__name__)

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
    "batch_dependency",
    "time_window",
    "share_trees",
)
OURS = {
    "cache": "auto",
    "cache_policy": "auto",
    "cache_dtype": None,
    "prefetch": 2,
    "lookahead": "auto",
    "memory": "auto",
    "shapes": "sampled",
    "seed": None,
    "device": None,
    "sampling_device": "cpu",
    "use_ddp": False,
}
"""Arguments of our loaders that PyG's lack, with their defaults."""


def sampler_of(arguments: Mapping[str, Any]) -> Any:
    """The sampler that a loader was given, or ours, made from the loader's arguments.

    Raises:
        ValueError: A sampler was given together with an argument that only ours supports.
    """
    if arguments["neighbor_sampler"] is not None:
        for name, least in {
            "batch_dependency": 1,
            "time_window": None,
            "share_trees": False,
        }.items():
            if arguments[name] != least:
                got = arguments[name]
                raise ValueError(
                    f"{name} must be {least} if neighbor_sampler is given, got {got!r}"
                )
        return arguments["neighbor_sampler"]
    return NeighborSampler(arguments["data"], **{name: arguments[name] for name in _OF_THE_SAMPLER})


@dataclass(eq=False)
class View:
    """The loader's attributes that PyG's ``filter_fn`` reads.

    Kept apart, so that engines do not hold the loader.
    """

    data: Any = None
    input_data: Any = None
    transform: Callable[..., Any] | None = None
    transform_sampler_output: Callable[..., Any] | None = None
    custom_cls: Any = None

    @property
    def sampler(self) -> Any:
        """The sampler of subgraphs."""
        raise NotImplementedError

    @property
    def is_ours(self) -> bool:
        """Whether a batch is a function of its inputs and a key (``sample_ahead``)."""
        return isinstance(self.sampler, KeyedSampler)

    def inputs(self, places: Tensor) -> Any:
        """Inputs of a batch, by their positions in the input."""
        return self.input_data[places]


@dataclass(eq=False)
class NodeView(View):
    """Attributes that ``NodeLoader.filter_fn`` reads."""

    node_sampler: Any = None

    @property
    def sampler(self) -> Any:
        """The sampler of subgraphs."""
        return self.node_sampler

    def sample(self, inputs: Any) -> Any:
        """A subgraph from a user's own sampler."""
        return self.node_sampler.sample_from_nodes(inputs)

    def sample_ahead(
        self, inputs: Any, key: int, pools: BufferPools, draw: Draw | None = None
    ) -> Any:
        """A subgraph from our sampler, and the ends of each hop's vertices."""
        return self.node_sampler.sample_nodes(inputs, key, pools, draw)


@dataclass(eq=False)
class LinkView(View):
    """Attributes that ``LinkLoader.filter_fn`` reads."""

    link_sampler: Any = None
    neg_sampling: Any = None

    @property
    def sampler(self) -> Any:
        """The sampler of subgraphs."""
        return self.link_sampler

    def sample(self, inputs: Any) -> Any:
        """A subgraph from a user's own sampler."""
        return self.link_sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)

    def sample_ahead(
        self, inputs: Any, key: int, pools: BufferPools, draw: Draw | None = None
    ) -> Any:
        """A subgraph from our sampler, and the ends of each hop's vertices."""
        return self.link_sampler.sample_edges(inputs, self.neg_sampling, key, pools, draw)


class Viewed:
    """A loader's attribute that lives in its ``_view``, so that the next batch sees changes.

    ``vars(loader)`` holds it, too, since Lightning makes a loader again from there.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance._view, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance._view, self._name, value)
        vars(instance)[self._name] = value


class Pipelined(LoaderControls, Prepared, Generic[D]):
    """Base of our loaders, before PyG's class: iterates through an engine.

    Subclasses make ``_view`` before PyG's constructor runs, and call :meth:`_begin` after it. A
    user's subclass that overrides ``filter_fn`` or ``collate_fn`` is iterated by torch as in PyG:
    with our sampler, but in worker processes, and without cache and ``seed``.
    """

    num_workers: int
    worker_init_fn: Any
    _view: Any
    _ranks: Ranks | None = None
    _device_sampler: DeviceSampler | None = None
    _program: DeviceProgram | None = None
    _placement: str = "host"
    if TYPE_CHECKING:
        data: D
        input_data: Any
        transform: Callable[..., Any] | None
        transform_sampler_output: Callable[..., Any] | None
        custom_cls: type[HeteroData] | None
    else:
        data = Viewed()
        input_data = Viewed()
        transform = Viewed()
        transform_sampler_output = Viewed()
        custom_cls = Viewed()

    def __str__(self) -> str:
        # As in PyG, since scripts compare and log it; repr() says more.
        return f"{type(self).__name__}()"

    def _begin(self, arguments: Mapping[str, Any], make: Make) -> None:
        """Make the engine from our arguments; PyG's constructor has checked its own."""
        for name, value in arguments.items():
            if name not in ("self", "kwargs", "__class__"):
                vars(self).setdefault(name, value)  # Lightning makes a loader again from these
        if arguments["use_ddp"]:
            self._ranks = process_ranks(0)
        self._start_engine({name: arguments[name] for name in OURS}, make)

    def _start_engine(self, options: dict[str, Any], make: Make) -> None:
        loader: Any = self
        # A bound method, whose reference cycle would delay freeing the loader.
        vars(self).pop("collate_fn", None)
        self._options = options
        self._make_batch = make
        order = order_of(loader, options["seed"], self._ranks)
        self._streams = isinstance(order, StreamOrder)
        self._device = None if options["device"] is None else resolve_device(options["device"])
        self._engine: Engine[Any] = Engine(
            self._workload(order),
            policy=resolve_policy(options["cache_policy"]),
            budget=Budget.parse(options["cache"]),
            options=self._pipeline_options(),
            device=self._device,
            cache_dtype=parse_cache_dtype(options["cache_dtype"]),
            memory=memory_budget(options["memory"]),
        )
        if are_fixed(options["shapes"]):
            self._fix_shapes(order)
        accelerator = self._engine.accelerator
        self._sender = None if accelerator is None else Sender(accelerator)
        self._joiner = Joiner(self._view, self._engine.fields, make)
        self._joiner.declare()
        self._device_sampler, self._placement = self._placed(options["sampling_device"])
        self._program = None if accelerator is None else self._device_program(order.batch_size)
        self._engine.use(self._source(self._view), program=self._program)

    def _device_program(self, count: int | None) -> DeviceProgram | None:
        """Makes batches of ``count`` seeds by one launch each; None if that is not possible."""
        sampler = self._view.sampler
        if (
            not count
            or not isinstance(self._view, NodeView)
            or type(sampler) is not NeighborSampler
        ):
            return None
        there = self._device_sampler
        if (sampler.is_hetero and there is None) or are_fixed(self._options["shapes"]):
            return None
        times = self._view.input_data.time
        beside = [torch.int64] if times is None else [torch.int64, times.dtype]
        if there is None and times is not None:
            return None
        # What edges have is selected on the CPU.
        if there is not None and self._joiner.selects_edges:
            return None
        if any(dtype.itemsize not in (4, 8) for dtype in beside):
            return None
        options = self._engine.epochs.options
        ahead = options.threads + options.prefetch
        hops = sampler.core.num_hops
        of = self._engine.fields
        return DeviceProgram(there, hops, of, count, ahead, once=True, beside=beside)

    @property
    def sampling_placement(self) -> str:
        """Where the sampled graph is, and how a device makes batches, or why it does not sample."""
        return self._placement if self._program is None else f"{self._placement}; {self._program}"

    def _placed(self, wanted: Any) -> tuple[DeviceSampler | None, str]:
        """The sampler on the batches' device, if wanted and possible, and the graph's placement."""
        # Without `device`, PyG's batches stay on the CPU.
        accelerator = None if self._device is None else self._engine.accelerator
        device = self._device or torch.device("cpu")
        make = partial(self._sampler_there, wanted)
        return sampler_where_wanted(wanted, device, accelerator, make)

    def _sampler_there(self, wanted: Any, accelerator: Accelerator) -> DeviceSampler:
        """A sampler on the accelerator; ValueError if only the CPU can sample."""
        sampler = self._view.sampler
        if getattr(sampler, "is_hetero", False):
            check_named(wanted)
        needs = "sampling on a device needs "
        if type(sampler) is not NeighborSampler:
            raise ValueError(f"{needs}a NeighborLoader's or LinkNeighborLoader's own sampler")
        if sampler.disjoint:
            check_named(wanted, "trees")
        if sampler.core.prob is not None:
            check_named(wanted, "weighted edges")
        if sampler.subgraph_type != SubgraphType.directional:
            raise ValueError(f"{needs}directional samples, got {sampler.subgraph_type.value!r}")
        if are_fixed(self._options["shapes"]):
            raise ValueError(f"{needs}shapes='sampled', got 'fixed'")
        if self._joiner.selects:
            raise ValueError(
                f"{needs}data that has only attributes of vertices and edges, in CPU tensors "
                "without gradients"
            )
        if self._joiner.selects_edges:
            check_named(wanted, "edges with attributes")
        # Imported here: the CPU does not need the device's kernels.
        from ..sampling.gpu.sampler import DeviceSampler

        size = self._engine.epochs.order.batch_size
        usual: tuple[int | dict[str, int], torch.dtype] | None = None
        # The number of distinct ends of links varies.
        if size and isinstance(self._view, NodeView):
            of_type = self._view.input_data.input_type
            seeds = size if of_type is None else {of_type: size}
            usual = (seeds, sampler.dtype)
        room = Budget.parse("auto", name="sampling_budget")
        return DeviceSampler(sampler.graph, sampler.core, accelerator, room, usual)

    def close(self) -> None:
        """See ``LoaderControls.close``; also frees the graph on a device.

        Later passes sample on the CPU.
        """
        super().close()
        if self._program is not None:
            self._program.close()
            self._program = None
        if self._device_sampler is not None:
            self._device_sampler.close()
            self._device_sampler = None
            self._placement = "host: the loader was closed"

    def _workload(self, order: Any) -> Workload:
        raise NotImplementedError

    def _fix_shapes(self, order: Any) -> None:
        """Have batches padded; ValueError if not supported."""
        raise ValueError(
            "shapes must be 'sampled' for all PyG loaders but NeighborLoader, got 'fixed' for a "
            f"{type(self).__name__}"
        )

    def _pipeline_options(self) -> PipelineOptions:
        """Options of a pass.

        Without ``num_workers``, user code stays in the reader's thread, with its RNG.
        """
        workers = as_integer("num_workers", self.num_workers)
        prefetch = as_integer("prefetch", self._options["prefetch"])
        ours = self._view.is_ours and not self._streams
        lookahead = parse_lookahead(self._options["lookahead"])
        if not ours and not workers:
            return PipelineOptions(0, 0, 0)
        return PipelineOptions(workers, prefetch, lookahead)

    def _source(self, view: View) -> SubgraphSource:
        loader: Any = self
        return SubgraphSource(
            view,
            self._joiner,
            self._engine,
            self._device,
            pins=bool(loader.pin_memory) and self._device is None and torch.cuda.is_available(),
            calls_ahead=self._pipeline_options().workers > 0,
            sender=self._sender,
            device_sampler=self._device_sampler,
        )

    def __getstate__(self) -> dict[str, Any]:
        made = ("_engine", "_joiner", "_sender", "_device_sampler", "_program", "collate_fn")
        state = {name: value for name, value in vars(self).items() if name not in made}
        return state | {"_place": self._engine.state_of_copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied loader in the same epoch, with a new engine."""
        place = state.pop("_place", None)
        vars(self).update(state)
        self._view = copy.copy(self._view)
        self._start_engine(self._options, self._make_batch)
        if place is not None:
            self.load_state_dict(place)

    # The batch type for each kind of data. A user's stores may be of either kind.
    @overload
    def __iter__(self: Pipelined[Data]) -> Iterator[NodeBatch]: ...
    @overload
    def __iter__(self: Pipelined[HeteroData]) -> Iterator[HeteroBatch]: ...
    @overload
    def __iter__(self: Pipelined[Any]) -> Iterator[NodeBatch | HeteroBatch]: ...
    def __iter__(self) -> Iterator[Any]:
        return self._get_iterator()

    def __call__(self, index: Any) -> Any:
        """Make the batch of some of the loader's inputs, outside of epochs, as in PyG.

        Any number of threads may call, also while an epoch runs. With a ``seed``, equal positions
        give equal batches, whatever was requested before. Without, torch's generator is used, as in
        PyG.

        Args:
            index: Positions among the inputs, as a tensor or a sequence of integers.
        """
        loader: Any = self
        if not self._makes_batches:
            return super().__call__(index)  # type: ignore[misc]
        places = places_of(index, len(loader.dataset), name="index")
        key = random_key() if self._options["seed"] is None else self._engine.request_key(0)
        return self._engine.on_request(self._source(self._view), places, key)

    def __len__(self) -> int:
        if self._ranks is None:
            return super().__len__()  # type: ignore[misc,no-any-return]
        # torch's length ignores other processes.
        return len(self._engine.epochs)

    def _get_iterator(self) -> Iterator[Any]:
        if is_running(self._view):
            raise PipelineError(
                f"a {type(self).__name__} must not be iterated in its own transform, which would "
                "be called again for every batch"
            )
        if not self._makes_batches:  # the engine would bypass the overrides
            return super()._get_iterator()  # type: ignore[misc,no-any-return]
        worker_init_fn = self.worker_init_fn if self.num_workers else None
        batches = self._engine.start(
            self._source(self._view),
            options=self._pipeline_options(),
            worker_init_fn=worker_init_fn,
            program=self._program,
        )
        return self._told(batches)

    def _can_be_prepared(self) -> bool:
        # accelerate itself prepares loaders that torch iterates.
        return self._makes_batches

    def _share_seeds(self, ranks: Ranks) -> None:
        if self._ranks is not None:  # use_ddp=True
            return
        self._ranks = ranks
        try:
            self._start_engine(self._options, self._make_batch)
        except TypeError:
            self._ranks = None
            raise

    @property
    def _makes_batches(self) -> bool:
        """Whether no subclass overrides ``collate_fn`` or ``filter_fn``."""
        loader: Any = self
        return _is_pygs(loader.collate_fn) and _is_pygs(loader.filter_fn)

    def set_epoch(self, epoch: int) -> None:
        """See ``LoaderControls.set_epoch``; also calls ``set_epoch`` of a torch sampler."""
        super().set_epoch(epoch)
        loader: Any = self
        tell_epoch(loader.batch_sampler, epoch)

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch warns of many processes, but workers are threads here."""

    @contextmanager
    def enable_cpu_affinity(
        self, loader_cores: Sequence[int | Sequence[int]] | None = None
    ) -> Iterator[None]:
        """Pin the threads of passes that begin inside to cores, if the system supports it.

        Args:
            loader_cores: One or several cores for each worker. Default: one each, of the first NUMA
                node.

        Raises:
            ValueError: There is no worker, the numbers of cores and workers differ, there are fewer
                cores than workers, or this process may not use a core.
        """
        if self.num_workers < 1:
            raise ValueError(
                "'enable_cpu_affinity' should be used with at least one worker (got "
                f"{self.num_workers})"
            )
        if loader_cores and len(loader_cores) != self.num_workers:
            raise ValueError(
                f"The number of loader cores (got {len(loader_cores)}) in 'enable_cpu_affinity' "
                "should match with the "
                f"number of workers (got {self.num_workers})"
            )
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        cores = self._cores(loader_cores)
        self.loader_cores: list[int | Sequence[int]] | list[int] = (
            list(loader_cores) if loader_cores else [core for (core,) in cores]
        )
        logger.debug("%d loader threads on cores %s", self.num_workers, cores)
        # 0 is the calling thread.
        with starting_workers(self, lambda worker: os.sched_setaffinity(0, cores[worker])):
            yield

    def _cores(self, loader_cores: Sequence[int | Sequence[int]] | None) -> list[list[int]]:
        allowed = os.sched_getaffinity(0)
        if not loader_cores:
            near = near_cores(allowed, self.num_workers, get_numa_nodes_cores())
            if len(near) < self.num_workers:
                raise ValueError(
                    f"More workers (got {self.num_workers}) than available cores (got {len(near)})"
                )
            return [[core] for core in near[: self.num_workers]]
        cores = [[core] if isinstance(core, int) else list(core) for core in loader_cores]
        for these in cores:
            if not these or not allowed.issuperset(these):
                raise ValueError(
                    f"loader_cores must be among the cores of this process, {sorted(allowed)}; got "
                    f"{loader_cores}"
                )
        return cores

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Check the argument as PyG does. A batch takes one thread, so nothing else is to be done.

        Raises:
            ValueError: There is no worker, or ``worker_threads`` exceeds torch's threads.
        """
        if self.num_workers < 1:
            raise ValueError(
                "'enable_multithreading' needs to be performed with at least one worker (got "
                f"{self.num_workers})"
            )
        if worker_threads is not None and worker_threads > torch.get_num_threads():
            raise ValueError(
                "'worker_threads' should be smaller than the total available number of threads "
                f"{torch.get_num_threads()} (got {worker_threads})"
            )
        yield

    @contextmanager
    def enable_memory_log(self) -> Iterator[None]:
        """Log the memory of the process when a worker begins, at level DEBUG."""
        with starting_workers(self, _log_memory):
            yield


def _is_pygs(method: Any) -> bool:
    return str(getattr(method, "__module__", None)).startswith("torch_geometric.")


def _log_memory(worker: int) -> None:
    import psutil  # PyG needs it

    memory = psutil.Process().memory_info().rss / 2**20
    logger.debug("worker %d of process %d: %.2f MiB", worker, os.getpid(), memory)
