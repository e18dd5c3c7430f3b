"""The loader of a training run, and what it counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from ..accelerator import accelerator_for, with_room
from ..cache.stats import FieldStats
from ..dgl import DataLoader
from ..dgl.graphbolt import import_dgl
from ..pipeline import Tracer
from ..sampling.keys import derive_key
from .distributed import World
from .options import TrainOptions

__all__ = ["batches_of_epoch", "count_passes", "count_reads", "make_loader", "repeated_with_room", "seed_of"]

T = TypeVar("T")


def seed_of(seed: int, rank: int) -> int:
    """The seed of a process: the first one's is that of one process alone."""
    return seed if rank == 0 else derive_key(seed, rank)


def make_loader(
    options: TrainOptions, world: World, graph: Any, ids: Any, sampler: Any, *, tracer: Tracer | None = None
) -> Any:
    """The chosen loader over ``ids``, shuffled; both get the same arguments but for what only pagraph's has."""
    settings: dict[str, Any] = {"batch_size": options.batch_size, "shuffle": True, "device": options.torch_device()}
    settings["num_workers"] = options.num_workers
    if options.loader == "dgl":
        return import_dgl().dataloading.DataLoader(graph, ids, sampler, **settings)
    if options.prefetch is not None:
        settings["prefetch"] = options.prefetch
    settings["num_workers"] = options.num_workers or world.loader_threads
    settings |= {"cache": options.cache, "cache_policy": options.cache_policy, "cache_dtype": options.cache_dtype}
    loader = DataLoader(graph, ids, sampler, seed=seed_of(options.seed, world.rank), **settings)
    if tracer is not None:
        loader.trace(tracer, label="train")
    return loader


def batches_of_epoch(loader: Any, steps: int) -> Iterator[Any]:
    """``steps`` batches: one pass over the loader's seeds, and where that is too few the beginning of further passes,
    each in an order of its own."""
    passes, rest = divmod(steps, len(loader))
    for _ in range(passes):
        yield from loader
    if rest:
        yield from islice(loader, rest)


def repeated_with_room(loader: Any, step: Callable[[], T]) -> T:
    """Do a step's work up to its gradients; where a GPU is too small for it, again with a smaller cache.

    Raises:
        OutOfMemory: It does not fit though the loader caches nothing any more.
    """
    shrink = getattr(loader, "shrink_cache", lambda: False)  # DGL's has no cache
    smaller = "batch size, fan-outs or hidden size must be smaller"
    return with_room(step, accelerator_for(loader.device), shrink, what="a training step", smaller=smaller)


def count_passes(loader: Any) -> int:
    """How many passes the loader has counted so far; 0 for DGL's, which counts nothing."""
    stats = getattr(loader, "stats", None)
    return 0 if stats is None else len(stats.epochs)


def count_reads(loader: Any, first: int) -> tuple[int | None, int]:
    """Rows that the cache served, and rows asked for, from pass ``first`` on; (None, 0) for DGL's loader."""
    stats = getattr(loader, "stats", None)
    if stats is None:
        return None, 0
    total = sum((e.reads.cacheable for e in stats.epochs[first:]), FieldStats())
    return total.hits, total.asked
