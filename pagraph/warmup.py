"""Compiles kernels ahead of time: each kind of loader reads a tiny graph, several at once.

Compiled kernels are kept for this user and this machine, and later processes load them. A kernel is
compiled for the dtypes that it is called with, and only a real batch calls all of them as a user's
batch will.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph.graph import Graph
    from .system.progress import Progress

__all__ = ["FACES", "Kind", "kinds_of", "warm_up"]

FACES = {"core": None, "dgl": "dgl", "pyg": "torch_geometric"}
"""Loaders that can be warmed up, to the package that they need."""

_VERTICES = 64
_BATCH = 32  # seeds: two batches an epoch


@dataclass(frozen=True)
class Kind:
    """A kind of loader.

    Attributes:
        face: One of ``FACES``.
        name: What is sampled, for a person.
        batches: Makes a loader of a graph.
    """

    face: str
    name: str
    batches: Callable[[Graph], Any]


def kinds_of(faces: Sequence[str] | None = None) -> list[Kind]:
    """The kinds of loaders of some faces.

    Args:
        faces: Names of ``FACES``. None: all whose packages are installed.

    Raises:
        ValueError: A face is not one of ``FACES``.
        MissingDependencyError: A named face needs a package that is not installed.
    """
    from .errors import MissingDependencyError, how_to_install

    for face in faces or ():
        if face not in FACES:
            raise ValueError(f"faces must be of {', '.join(FACES)}, got {face!r}")
        if not _is_there(face):
            raise MissingDependencyError(
                f"face {face!r} needs {FACES[face]}, which is not installed: {how_to_install(face)}"
            )
    wanted = [face for face in FACES if _is_there(face)] if faces is None else list(faces)
    return [kind for kind in _KINDS if kind.face in wanted]


def warm_up(
    faces: Sequence[str] | None = None, *, jobs: int | None = None, progress: Progress | None = None
) -> int:
    """Compile the kernels that loaders will need, in several processes.

    Args:
        faces: See :func:`kinds_of`.
        jobs: Number of processes. None: the cores that this process may use.
        progress: Called with the kinds done, and their number.

    Returns:
        The number of kinds of loaders.

    Raises:
        ValueError: A face is not one of ``FACES``, or ``jobs`` is below 1.
        MissingDependencyError: As :func:`kinds_of`.
        PaGraphError: Kernels would not be kept, a kind of loader failed, or its process died.
    """
    from ._jit import check_compiler
    from ._kernel_folder import kernel_folder
    from .errors import PaGraphError
    from .system.checks import as_integer
    from .system.threads import usable_cpus

    kinds = kinds_of(faces)
    check_compiler()
    why = kernel_folder().why_not_kept()
    if why:
        raise PaGraphError(f"compiled kernels would not be kept: {why}")
    most = usable_cpus() if jobs is None else as_integer("jobs", jobs, least=1)
    # Not forked: a thread of the parent may hold numba's lock, which a fork would copy.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(most, len(kinds)), mp_context=context, initializer=_begin
    ) as executor:
        running = {executor.submit(_make, _KINDS.index(kind)): kind for kind in kinds}
        if progress is not None:
            progress(0, len(kinds))
        for done, future in enumerate(as_completed(running), 1):
            try:
                future.result()
            except Exception as error:
                executor.shutdown(wait=False, cancel_futures=True)
                kind = running[future]
                raise PaGraphError(f"{kind.face}: {kind.name}: {error}") from error
            if progress is not None:
                progress(done, len(kinds))
    return len(kinds)


def _is_there(face: str) -> bool:
    package = FACES[face]
    return package is None or importlib.util.find_spec(package) is not None


def _begin() -> None:
    # Ctrl-C goes to the whole group. Only the parent reports it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["PAGRAPH_QUIET"] = "1"  # no note that kernels are compiled, as that is the purpose


def _make(number: int) -> None:
    """Read all batches of a kind of loader, by its number, as its function cannot be pickled."""
    for _ in _KINDS[number].batches(_tiny_graph()):
        pass


def _tiny_graph() -> Graph:
    """A graph with features and labels, whose edges have weights and times."""
    import torch

    from .datasets import sbm

    graph = sbm(_VERTICES, num_classes=4, num_features=4)
    weights = torch.linspace(0.5, 1.5, graph.num_edges, device="cpu")
    times = torch.arange(graph.num_edges, device="cpu")
    graph.edata.update({"weight": weights, "time": times})
    return graph


def _core(make_sampler: Callable[[], Any], dtype: str = "int64") -> Callable[[Graph], Any]:
    def batches(graph: Graph) -> Any:
        import torch

        from .loader import Loader

        seeds = torch.arange(_VERTICES, dtype=getattr(torch, dtype), device="cpu")
        columns: Any = {"fields": ["feat"], "labels": ["label"]}
        return Loader(graph, seeds, make_sampler(), batch_size=_BATCH, **columns)

    return batches


def _blocks(**options: Any) -> Callable[[], Any]:
    def make() -> Any:
        from .sampling import NeighborSampler

        return NeighborSampler([3, 3], **options)

    return make


def _labor() -> Any:
    from .sampling import LaborSampler

    return LaborSampler([3, 3])


def _layers() -> Any:
    from .sampling import LayerSampler

    return LayerSampler([16, 16])


def _core_links(graph: Graph) -> Any:
    import torch

    from .loader import Loader
    from .sampling import EdgeBatches, NeighborSampler, UniformNegatives

    sampler = EdgeBatches(NeighborSampler([3, 3]), negatives=UniformNegatives(1), exclude=True)
    return Loader(
        graph, torch.arange(_BATCH, device="cpu"), sampler, fields=["feat"], batch_size=_BATCH
    )


def _dgl(
    name: str, *arguments: Any, dtype: str = "int64", links: bool = False, **options: Any
) -> Callable[[Graph], Any]:
    def batches(graph: Graph) -> Any:
        import torch

        from . import dgl

        sampler = getattr(dgl, name)(*arguments, prefetch_node_feats=["feat"], **options)
        seeds = torch.arange(_VERTICES, dtype=getattr(torch, dtype), device="cpu")
        if links:
            negatives: Any = {
                "exclude": "self",
                "negative_sampler": dgl.negative_sampler.Uniform(1),
            }
            sampler = dgl.as_edge_prediction_sampler(sampler, **negatives)
        data = dgl.to_dgl(graph)
        if dtype == "int32":
            data = data.int()
        return dgl.DataLoader(data, seeds, sampler, batch_size=_BATCH)

    return batches


def _pyg(name: str, *arguments: Any, **options: Any) -> Callable[[Graph], Any]:
    def batches(graph: Graph) -> Any:
        from . import pyg

        return getattr(pyg, name)(pyg.to_pyg(graph), *arguments, batch_size=_BATCH, **options)

    return batches


def _pyg_links(graph: Graph) -> Any:
    from . import pyg

    options: Any = {"neg_sampling_ratio": 1.0, "batch_size": _BATCH}
    data = pyg.to_pyg(graph)
    return pyg.LinkNeighborLoader(
        data, [3, 3], edge_label_index=data.edge_index[:, :_BATCH], **options
    )


def _pyg_times(unit: int) -> Callable[[Graph], Any]:
    """Batches in time, whose times are multiples of ``unit``.

    Times that do not fit into 32 bits need other kernels. The number of vertex types makes no
    difference, nor do trees without times.
    """

    def batches(graph: Graph) -> Any:
        import torch

        from . import pyg

        late = torch.full((_VERTICES,), unit * graph.num_edges, device="cpu")
        options: Any = {"time_attr": "time", "batch_size": _BATCH}
        data = pyg.to_pyg(graph)
        data.time = data.time * unit
        return pyg.NeighborLoader(
            data,
            [3, 3],
            input_nodes=torch.arange(_VERTICES, device="cpu"),
            input_time=late,
            **options,
        )

    return batches


def _hgt(graph: Graph) -> Any:
    from torch_geometric.data import HeteroData

    from . import pyg

    data = HeteroData()
    plain = pyg.to_pyg(graph)
    data["vertex"].x = plain.x
    data["vertex", "to", "vertex"].edge_index = plain.edge_index
    return pyg.HGTLoader(data, [16, 16], input_nodes="vertex", batch_size=_BATCH)


def _saint(graph: Graph) -> Any:
    from . import pyg

    options: Any = {"walk_length": 2, "num_steps": 2, "log": False}
    return pyg.GraphSAINTRandomWalkSampler(pyg.to_pyg(graph), batch_size=_BATCH, **options)


# Neighbours in the list share few kernels, so that two processes do not compile the same at once.
# Later kinds find most of their kernels compiled.
_KINDS = [
    Kind("pyg", "neighbours", _pyg("NeighborLoader", [3, 3])),
    Kind("pyg", "HGT", _hgt),
    Kind("core", "neighbours", _core(_blocks())),
    Kind("pyg", "times", _pyg_times(1)),
    Kind("dgl", "neighbours", _dgl("NeighborSampler", [3, 3])),
    Kind("core", "weights", _core(_blocks(prob="weight"))),
    Kind("pyg", "times of 64 bits", _pyg_times(10**9)),
    Kind("dgl", "LABOR", _dgl("LaborSampler", [3, 3])),
    Kind("dgl", "ids of int32", _dgl("NeighborSampler", [3, 3], dtype="int32")),
    Kind("pyg", "links", _pyg_links),
    Kind("core", "LADIES", _core(_layers)),
    Kind("dgl", "links", _dgl("NeighborSampler", [3, 3], links=True)),
    Kind("core", "links", _core_links),
    Kind("core", "ids of int32", _core(_blocks(), dtype="int32")),
    Kind("core", "LABOR", _core(_labor)),
    Kind("dgl", "weights", _dgl("NeighborSampler", [3, 3], prob="weight")),
    Kind("pyg", "weights", _pyg("NeighborLoader", [3, 3], weight_attr="weight")),
    Kind("pyg", "all neighbours", _pyg("NeighborLoader", [-1, -1])),
    Kind("pyg", "ShaDow", _pyg("ShaDowKHopSampler", 2, 3)),
    Kind("pyg", "GraphSAINT", _saint),
]
