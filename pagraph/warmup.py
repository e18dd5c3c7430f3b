"""Kernels compiled ahead: each kind of loader makes its batches of a tiny graph, in processes side
by side.

What is compiled is kept for this user and this machine, and later processes load it. A kernel is
compiled for the dtypes that it is called with: only a real batch calls all of them as a user's
will.
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
"""The loaders that can be warmed up, and the package that each of them needs."""

_VERTICES = 64
_BATCH = 32  # seeds: two batches an epoch


@dataclass(frozen=True)
class Kind:
    """A kind of loader.

    Attributes:
        face: One of ``FACES``.
        name: What is sampled, for a person.
        batches: Makes a loader of a graph; its batches are read, and dropped.
    """

    face: str
    name: str
    batches: Callable[[Graph], Any]

    @property
    def title(self) -> str:
        """Face and name."""
        return f"{self.face}: {self.name}"


def kinds_of(faces: Sequence[str] | None = None) -> list[Kind]:
    """The kinds of loaders of some faces.

    Args:
        faces: Names of ``FACES``. None: all whose packages are installed.

    Raises:
        ValueError: There is no such face.
        MissingDependencyError: A face that was named needs a package that is not installed.
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
    """Compile the kernels that loaders will need, in several processes; the kinds of loaders.

    Args:
        faces: See :func:`kinds_of`.
        jobs: Processes. None: as many as the process may use cores.
        progress: Called with the kinds done, and how many there are.

    Raises:
        ValueError: A face or ``jobs`` is none.
        PaGraphError: A kind of loader failed, or its process died; says which.
    """
    from .errors import PaGraphError
    from .system.checks import as_integer
    from .system.threads import usable_cpus

    kinds = kinds_of(faces)
    most = usable_cpus() if jobs is None else as_integer("jobs", jobs, least=1)
    # Fresh processes: threads of the parent's may hold numba's lock, which a fork would copy.
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
                raise PaGraphError(f"{running[future].title}: {error}") from error
            if progress is not None:
                progress(done, len(kinds))
    return len(kinds)


def _is_there(face: str) -> bool:
    package = FACES[face]
    return package is None or importlib.util.find_spec(package) is not None


def _begin() -> None:
    # Ctrl-C goes to the whole group: the parent says what happened, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["PAGRAPH_QUIET"] = "1"  # that kernels are compiled is what was asked for


def _make(number: int) -> None:
    """Read all batches of a kind of loader; by number, as functions are not pickled."""
    for _ in _KINDS[number].batches(_tiny_graph()):
        pass


def _tiny_graph() -> Graph:
    """A graph whose edges have weights and times, with features and labels."""
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
    """In time, with times so far apart: whether they fit into 32 bits says which kernels are
    needed. One type of vertices or several, trees with or without times: the kernels are the
    same."""

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


# In this order: neighbours in the list have few kernels in common, so that two processes do not
# compile the same at once. What comes later finds most of its kernels compiled.
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
