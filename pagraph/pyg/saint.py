"""GraphSAINT's samplers: PyG's arguments and batches, drawn by our kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._streams import has_stderr
from ..errors import FormatError
from ..graph.graph import EDGE_TYPE, NODE_TYPE
from ..ranking.presample import default_threads, run_tickets
from ..ranking.workload import Workload
from ..sampling.induced import induced_subgraph
from ..sampling.saint import SaintSampler
from ..seeds.keys import check_seed, derive_key, random_key
from ..system.atomic import new_file
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from ..system.torch_file import load_saved
from .filtering import rows_of, stacked
from .graphs import core_graph
from .inputs import check_has_edges, foreign_workload
from .joining import Reading
from .package import import_pyg
from .pipelined import Viewed
from .subgraphs import SubgraphLoader, SubgraphView, level_of

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import Data  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..typing import CacheOptions
    from .joining import Name

_NORM = 0x6E6F726D  # "norm": a key space of its own for the batches of the normalisation


@dataclass(eq=False, kw_only=True)
class SaintView(SubgraphView):
    """A view with the normalisation, if any."""

    node_norm: Tensor | None = None
    edge_norm: Tensor | None = None


class GraphSAINTSampler(SubgraphLoader, _pyg.GraphSAINTSampler):
    """Drop-in for ``torch_geometric.loader.GraphSAINTSampler``, the base of GraphSAINT's samplers.

    Needs no torch-sparse. As in PyG, a batch has the edges among the drawn vertices, ordered by
    source and then destination, and rows of all tensors with one per vertex or edge. With as many
    vertices as edges, the name decides which (in PyG it does not). Threads draw batches ahead of
    the training loop, as a function of (seed, epoch, batch). A subclass with its own
    ``_sample_nodes`` is iterated by torch, as in PyG, without threads and cache.

    The normalisation is PyG's. Let ``C_v`` and ``C_uv`` count a vertex and an edge in ``S``
    batches, and ``N`` be the number of vertices. Then ``node_norm`` is ``S / C_v / N`` (with 0.1
    for a ``C_v`` of 0), and ``edge_norm`` is ``C_u / C_uv``, at most 1e4 (0.1 if both are 0).
    Threads sample batches until these have ``sample_coverage * N`` vertices.

    Args:
        data: A ``Data`` with ``edge_index``, without ``node_norm`` and ``edge_norm``.
        batch_size: Draws per batch.
        num_steps: Batches per epoch.
        sample_coverage: Average number of draws of each vertex for the normalisation; 0: no
            normalisation.
        save_dir: Folder that keeps the normalisation in PyG's files; read from there if it exists.
        log: Show the progress of the normalisation.
        **kwargs: Torch's, except ``batch_size``; ``cache``, ``cache_policy``, ``cache_dtype``,
            ``prefetch``, ``lookahead``, ``memory``, ``seed`` and ``device`` as in
            :class:`~pagraph.pyg.NeighborLoader`.

    Raises:
        TypeError: ``data`` is not a ``Data``, or a number is not an integer.
        ValueError: A number is too small, the graph has nothing to draw, or ``data`` already has a
            normalisation.
        FormatError: The saved file has other content, or is for another graph.
    """

    node_norm = Viewed()
    edge_norm = Viewed()

    def __init__(
        self,
        data: Data,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Unpack[CacheOptions],
    ) -> None:
        # Lightning passes these when it makes the loader again; dropped, as in PyG.
        kwargs.pop("dataset", None)
        kwargs.pop("collate_fn", None)
        _check(data)
        self.num_steps: int = as_integer("num_steps", num_steps, least=1)
        self._batch_size = as_integer("batch_size", batch_size, least=1)
        self.sample_coverage: int = as_integer("sample_coverage", sample_coverage, least=0)
        self.save_dir = save_dir
        self.log = log
        graph = core_graph(data)
        self.N = graph.num_nodes
        self.E = graph.num_edges
        # A subclass with its own `_sample_nodes` is iterated by torch.
        draws: Any = None
        if type(self)._sample_nodes is GraphSAINTSampler._sample_nodes:
            draws = self._core()
        if draws is not None:
            draws.check(graph)
        items = torch.arange(self.num_steps, device="cpu")
        self._view: SaintView = SaintView(
            data=data, graph=graph, core=draws, items=items, flipped=True
        )
        seed = check_seed("seed", kwargs.get("seed"))
        self._load(_joined, {"batch_size": 1} | kwargs)
        if self.sample_coverage:
            self.node_norm, self.edge_norm = self._norms(seed)

    def _core(self) -> SaintSampler | None:
        """The sampler of vertices; None if a subclass's ``_sample_nodes`` draws them."""
        return None

    def _sample_nodes(self, batch_size: int) -> Tensor:
        """Vertices from ``batch_size`` draws, with repeats, shape ``(n,)``; may be overridden."""
        core = self._core()
        if core is None:
            raise NotImplementedError
        return replace(core, budget=batch_size).draw(self._view.graph, random_key())

    def _workload(self, order: Any) -> Workload:
        if self._view.core is None:
            return foreign_workload(self.data, order)
        return super()._workload(order)

    @property
    def _makes_batches(self) -> bool:
        return self._view.core is not None and super()._makes_batches

    def __len__(self) -> int:
        return len(self._view.items)

    def __getitem__(self, idx: int) -> Any:
        """Raise NotImplementedError: PyG returns torch-sparse's ``SparseTensor`` here."""
        raise NotImplementedError(
            f"{type(self).__name__} must be iterated, as it has batches and no items, got index "
            f"{idx}"
        )

    def _collate(self, items: Any) -> Any:
        """A batch, drawn with torch's global generator."""
        output = self._view.output(self._subgraph(None))
        return _joined(self._view, output, Reading(self._view.data), {})

    def _subgraph(self, key: int | None, pools: BufferPools | None = None) -> Any:
        """A batch's subgraph; drawn by ``_sample_nodes`` without a key, or if it is overridden."""
        graph = self._view.graph
        core: Any = self._view.core
        if key is not None and core is not None:
            return core.sample(graph, None, key, pools=pools, turned=True)
        nodes = torch.unique(self._sample_nodes(self._batch_size))
        return induced_subgraph(graph, nodes, edge_dir="out", turned=True)

    def _norms(self, seed: int | None) -> tuple[Tensor, Tensor]:
        """The normalisation, from its file or computed."""
        if self.save_dir is None:
            return self._compute_norm(seed)
        path = os.path.join(self.save_dir, self._filename)
        if os.path.exists(path):
            norms = load_saved(path, advice="delete it to make it again")
            shapes = [(self.N,), (self.E,)]
            if not isinstance(norms, tuple | list) or [_shape(norm) for norm in norms] != shapes:
                raise FormatError(
                    f"{path} must hold two tensors of shapes {shapes}, for this graph; delete it "
                    "to make it again"
                )
            return norms[0], norms[1]
        norms = self._compute_norm(seed)
        with new_file(path) as file:
            torch.save(norms, file)
        return norms

    def _compute_norm(self, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """The normalisation of vertices ``(N,)`` and of edges ``(E,)``, float32."""
        from ..graph import _csc

        node_count = torch.zeros(self.N, dtype=torch.int64, device="cpu")
        edge_count = torch.zeros(self.E, dtype=torch.int64, device="cpu")
        # Innermost lock, held while one batch is counted.
        lock = threading.Lock()
        if seed is None:
            seed = random_key()
        first = derive_key(seed, _NORM)
        # One thread for a user's own draws, which follow torch's global generator in order.
        threads = 1 if self._view.core is None else default_threads()
        pools = BufferPools(batches=threads)
        total = 0
        batches = 0

        def count(progress: Any, key: int) -> None:
            nonlocal total
            subgraph = self._subgraph(key, pools)
            nodes = subgraph.input_nodes[NODE_TYPE]
            with lock:
                _csc.count_degrees(nodes.numpy(), node_count.numpy())
                _csc.count_degrees(subgraph.edges[EDGE_TYPE].edge_ids.numpy(), edge_count.numpy())
                total += len(nodes)
                progress.update(len(nodes))

        wanted = self.N * self.sample_coverage
        shown = wanted if self.log else None
        with _progress(shown) as progress:
            while total < wanted:
                # Whole epochs, as in PyG, so that the batches do not depend on threads.
                places = range(batches, batches + self.num_steps)
                keys: list[Any] = [derive_key(first, place) for place in places]
                run_tickets(partial(count, progress), iter(keys), threads)
                batches += self.num_steps
        return self._norms_of(node_count.float(), edge_count.float(), batches)

    def _norms_of(
        self, node_count: Tensor, edge_count: Tensor, batches: int
    ) -> tuple[Tensor, Tensor]:
        """PyG's normalisation from the counts of vertices and edges.

        With ``S`` batches: ``S / C_v / N`` of a vertex, ``C_u / C_uv`` of an edge (GraphSAINT,
        section 3.2).
        """
        csc = self._view.graph.csc
        of_source = torch.empty_like(edge_count)
        of_source[csc.ids_at(torch.arange(self.E, device="cpu")).long()] = node_count[
            csc.indices.long()
        ]
        edge_norm = (of_source / edge_count).clamp_(0, 1e4)
        # 0 / 0: the source was never drawn. As in PyG.
        edge_norm[torch.isnan(edge_norm)] = 0.1
        node_count[node_count == 0] = 0.1
        return batches / node_count / self.N, edge_norm


class GraphSAINTNodeSampler(GraphSAINTSampler, _pyg.GraphSAINTNodeSampler):
    """Drop-in for ``torch_geometric.loader.GraphSAINTNodeSampler``.

    A batch has the sources of ``batch_size`` edges, drawn uniformly. See
    :class:`~pagraph.pyg.GraphSAINTSampler`.

    Example:
        >>> import torch
        >>> from pagraph.pyg import GraphSAINTNodeSampler
        >>> from torch_geometric.data import Data
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=edges)
        >>> loader = GraphSAINTNodeSampler(data, batch_size=50, num_steps=2)
        >>> [batch.x.view(-1).tolist() for batch in loader]
        [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    """

    def _core(self) -> SaintSampler:
        return SaintSampler("node", self._batch_size, by_degree=True, edge_dir="out")


class GraphSAINTEdgeSampler(GraphSAINTSampler, _pyg.GraphSAINTEdgeSampler):
    """Drop-in for ``torch_geometric.loader.GraphSAINTEdgeSampler``.

    A batch has both ends of ``batch_size`` edges. As in PyG, an edge ``(u, v)`` is drawn in
    proportion to the in-degree of ``u`` plus the out-degree of ``v``. (The paper takes the sum of
    their inverses.) See :class:`~pagraph.pyg.GraphSAINTSampler`.
    """

    def _core(self) -> SaintSampler:
        return SaintSampler("edge", self._batch_size, by_degree=True, edge_dir="out")


class GraphSAINTRandomWalkSampler(GraphSAINTSampler, _pyg.GraphSAINTRandomWalkSampler):
    """Drop-in for ``torch_geometric.loader.GraphSAINTRandomWalkSampler``.

    A batch has all vertices of ``batch_size`` walks along the edges, from uniformly drawn roots. A
    walk ends at a vertex without out-edges. (torch-sparse's goes on from another vertex, or reads
    out of bounds.)

    Args:
        data: See :class:`~pagraph.pyg.GraphSAINTSampler`, also for all but ``walk_length``.
        batch_size: Walks per batch.
        walk_length: Steps per walk.
        num_steps: See there.
        sample_coverage: See there.
        save_dir: See there.
        log: See there.
        **kwargs: See there.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Unpack[CacheOptions],
    ) -> None:
        self.walk_length: int = as_integer("walk_length", walk_length, least=1)
        super().__init__(data, batch_size, num_steps, sample_coverage, save_dir, log, **kwargs)

    def _core(self) -> SaintSampler:
        return SaintSampler("walk", self._batch_size, self.walk_length, edge_dir="out")


def _check(data: Any) -> None:
    """Raise TypeError or ValueError for data without edges, or with a normalisation."""
    check_has_edges(data)
    for name in ("node_norm", "edge_norm"):
        if name in data:
            raise ValueError(f"data must not have {name!r}, which the sampler adds to batches")


def _joined(view: SaintView, output: Any, reading: Reading, rows: Mapping[Name, Tensor]) -> Any:
    """The batch that PyG's samplers make from vertices and the edges among them."""
    data = view.data.__class__()
    data.num_nodes = len(output.node)
    data.edge_index = stacked(output.row, output.col)
    for name, value in view.data.items():
        if name in ("edge_index", "num_nodes"):
            continue
        level = level_of(view, name, value, rows)
        if level is not None:
            index = output.node if level == "node" else output.edge
            value = rows_of(rows, name, value, index)
        data[name] = value
    if view.node_norm is not None and view.edge_norm is not None:
        data.node_norm = torch.index_select(view.node_norm, 0, output.node)
        data.edge_norm = torch.index_select(view.edge_norm, 0, output.edge)
    return data


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _progress(total: int | None) -> Any:
    """PyG's progress bar; hidden without ``total``."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # PyG needs it

    bar = tqdm(total=total, disable=total is None or not has_stderr())
    bar.set_description("Compute GraphSAINT normalization")
    return bar
