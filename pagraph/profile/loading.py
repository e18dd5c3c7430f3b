"""Times real epochs of :class:`pagraph.Loader` by stage, optionally with a GraphSAGE step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._compiling import LoopTimes
from ..loader import Loader
from ..system.checks import StrPath, as_integer
from ..system.progress import Progress
from .arguments import check_fields, check_seeds

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.minibatch import Block, MiniBatch
    from ..ranking.policy import Policy
    from ..sampling import NeighborSampler
    from ..stats import EpochStats

LOADING_STAGES = {
    "sampling": "workers draw neighbours",
    "gathering": "workers read rows, from the cache or from memory or disk",
    "filling": "the reader fills the cache, once",
    "waiting": "the reader waits for a batch that is not ready",
    "copying": "the reader hands batches to the device",
    "computing": "the reader computes with the batch",
    "kernels": "kernels are loaded or compiled, once in a process",
}
"""Stage to its description. Times of workers are summed over threads; those of the reader make up
the epoch, to which kernels do not count."""


@dataclass(frozen=True)
class EpochTimes:
    """Times of one epoch.

    Attributes:
        epoch, batches: Number of the epoch, and the batches that were read.
        seconds: Wall time, without waiting for kernels.
        stages: Seconds by stage, see ``LOADING_STAGES``.
        hit_rate: Rows served by the cache / rows asked for, of cacheable fields.
        rows: Rows asked for of all fields.
    """

    epoch: int
    batches: int
    seconds: float
    stages: dict[str, float]
    hit_rate: float
    rows: int


@dataclass(frozen=True)
class LoadingTimes:
    """Times of several epochs of a loader, by stage.

    The first epoch also loads kernels and fills the cache. ``settings`` are the arguments of the
    run; ``cache`` is the cache plan in words.
    """

    epochs: list[EpochTimes]
    settings: dict[str, Any] = field(default_factory=dict)
    cache: str = ""

    @property
    def medians(self) -> dict[str, float]:
        """Stage to its median seconds per epoch; ``"epoch"`` is the wall time.

        The first of several epochs is left out.
        """
        epochs = self.epochs[1:] or self.epochs
        stages = {stage: median(e.stages[stage] for e in epochs) for stage in LOADING_STAGES}
        return stages | {"epoch": median(e.seconds for e in epochs)}

    def to_json(self) -> dict[str, Any]:
        """The times for ``json.dumps``."""
        return asdict(self) | {"medians": self.medians}


def measure_loading(
    graph: Graph,
    seeds: Tensor,
    sampler: NeighborSampler,
    *,
    fields: Sequence[str] = (),
    labels: Sequence[str] = (),
    batch_size: int = 1000,
    drop_last: bool = False,
    cache: Any = "auto",
    policy: str | Policy = "degree",
    device: str | torch.device = "cpu",
    num_workers: int = 0,
    prefetch: int = 2,
    lookahead: int | str = "auto",
    memory: Any = "auto",
    epochs: int = 3,
    seed: int = 0,
    compute: Callable[[MiniBatch], object] | None = None,
    trace: StrPath | None = None,
    progress: Progress | None = None,
) -> LoadingTimes:
    """Time a :class:`pagraph.Loader` over whole epochs, by stage.

    Args:
        graph: A homogeneous graph.
        seeds: Vertex ids to train on, shape ``(n,)``.
        sampler, fields, labels, batch_size, drop_last, cache, device, num_workers: As for the
            loader.
        prefetch, lookahead, memory, seed: As for the loader.
        policy: The loader's ``cache_policy``.
        epochs: Epochs to run. The first of several is a warm-up, which ``LoadingTimes.medians``
            leaves out.
        compute: Training step, called with every batch; default: none. The page shows its
            ``description``, if it has one.
        trace: File for a timeline of the run (see ``Loader.trace``).
        progress: Called with the batches done and all batches.

    Raises:
        ValueError: ``epochs`` is below 1, there are no seeds, a field does not exist, or the graph
            is not homogeneous.
        TypeError, IndexError: As the loader.
        OSError: ``trace`` cannot be written.
    """
    as_integer("epochs", epochs, least=1)
    check_seeds(graph, seeds)
    if not graph.is_homogeneous:
        raise ValueError(
            f"graph must have one vertex type and one edge type to measure loading, got {graph}"
        )
    check_fields(graph, fields)
    check_fields(graph, labels, argument="labels")
    loader = Loader(
        graph,
        seeds,
        sampler,
        fields=fields,
        labels=labels,
        batch_size=batch_size,
        shuffle=True,
        drop_last=drop_last,
        device=device,
        cache=cache,
        cache_policy=policy,
        num_workers=num_workers,
        prefetch=prefetch,
        lookahead=lookahead,
        memory=memory,
        seed=seed,
    )
    settings = {
        "batch_size": batch_size,
        "cache": str(cache),
        "policy": str(policy),
        "device": str(loader.device),
        "epochs": epochs,
        "seed": seed,
        "sampler": repr(sampler),
        "computes": compute is not None,
        "step": getattr(compute, "description", None),
    }
    tracing = nullcontext() if trace is None else loader.trace(trace)
    with tracing:
        times = [_epoch(loader, number, epochs, compute, progress) for number in range(epochs)]
    return LoadingTimes(times, settings, repr(loader.cache_plan))


def _epoch(
    loader: Loader,
    number: int,
    epochs: int,
    compute: Callable[[MiniBatch], object] | None,
    progress: Progress | None,
) -> EpochTimes:
    # The clock is read with the device idle. CUDA runs asynchronously, and work that a batch left
    # would be counted as the next batch's.
    begin = _now(loader.device)
    times = LoopTimes(begin)
    for done, batch in enumerate(loader, 1):
        if compute is not None:
            times.waited(_now(loader.device))
            compute(batch)
            times.computed(_now(loader.device))
        if progress is not None:
            progress(number * len(loader) + done, epochs * len(loader))
    end = _now(loader.device)
    times.waited(end)
    stats = loader.stats.epochs[-1]
    stages = _stages(stats, on_cpu=loader.device.type == "cpu") | {"computing": times.computing}
    seconds = end - begin - times.kernels
    return EpochTimes(
        number, stats.batches, seconds, stages, stats.hit_rate, stats.reads.total.asked
    )


def _stages(stats: EpochStats, *, on_cpu: bool) -> dict[str, float]:
    """Rename the loader's stages, and split the reader's waiting by what it waits for."""
    seconds = stats.seconds
    # The reader's "waiting" includes filling and copying. This loader's "building" is only the copy
    # to the device; on the CPU there is none.
    copying = 0.0 if on_cpu else seconds.get("building", 0.0)
    filling = seconds.get("filling", 0.0)
    return {
        "sampling": seconds.get("sampling", 0.0),
        "gathering": seconds.get("fetching", 0.0),
        "filling": filling,
        "waiting": max(0.0, seconds.get("waiting", 0.0) - copying - filling),
        "copying": copying,
        "kernels": seconds.get("kernels", 0.0),
    }


def _now(device: torch.device) -> float:
    """Read the clock after the device has finished its pending work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class SageStep:
    """A GraphSAGE training step on batches of ``pagraph.Loader``: forward, backward and Adam.

    Every label is class 0.

    Args:
        fields: Names of the input fields; their rows are flattened and concatenated.
        width: Number of values in these rows.
        hops: Number of layers.
        hidden, classes: Widths of the hidden layers and of the last.
        device: Device of the batches.
    """

    def __init__(
        self,
        fields: Sequence[str],
        *,
        width: int,
        hops: int,
        hidden: int = 64,
        classes: int = 16,
        device: str | torch.device = "cpu",
    ) -> None:
        sizes = [width, *[hidden] * (hops - 1), classes]
        self.description: str = (
            f"one step of GraphSAGE on {device} ({hops} layers, {hidden} hidden values)"
        )
        self._fields = list(fields)
        self._layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(sizes)).to(device)
        self._optimizer = torch.optim.Adam(self._layers.parameters())

    def __call__(self, batch: MiniBatch) -> float:
        """Train on one batch; the loss."""
        x = torch.cat([batch.features[name].flatten(1).float() for name in self._fields], 1)
        # GraphSAGE with mean aggregation (Hamilton et al., NeurIPS 2017):
        # h_v = relu(W [h_v, mean of h_u over sampled in-neighbours u]), without relu in the end.
        last = len(self._layers) - 1
        for i, (block, layer) in enumerate(zip(batch.blocks, self._layers, strict=True)):
            x = layer(torch.cat([x[: block.num_dst], _mean(block, x)], 1))
            if i != last:
                x = x.relu()
        # The graph may have no labels, and a step takes the same time with any.
        classes = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        loss = nn.functional.cross_entropy(x, classes)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())


def _mean(block: Block, x: Tensor) -> Tensor:
    """The mean of each destination's sampled in-neighbours; zeros where there are none."""
    degrees = (block.indptr[1:] - block.indptr[:-1]).long()
    ends = torch.repeat_interleave(torch.arange(block.num_dst, device=x.device), degrees)
    total = torch.zeros(block.num_dst, x.shape[1], device=x.device)
    total.index_add_(0, ends, x[block.indices.long()])
    return total / degrees.clamp(min=1).unsqueeze(1)
