"""ClusterData and ClusterLoader: PyG's arguments, files and batches, by our kernels."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._late import call_late
from .._streams import print_notice
from ..errors import FormatError
from ..graph.csc import CSC, id_dtype
from ..graph.graph import EDGE_TYPE, NODE_TYPE, Graph
from ..sampling.induced import ClusterSampler
from ..system.atomic import new_file
from ..system.checks import as_integer
from ..system.torch_file import load_saved
from .filtering import rows_of, stacked
from .inputs import check_has_edges
from .package import import_pyg
from .subgraphs import SubgraphLoader, SubgraphView

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader.cluster import Partition  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..typing import LoaderOptions
    from .joining import Name, Reading

_FORMATS = ("csr", "csc")
_REMOVE = "delete it to make it again"


class ClusterData(_pyg.ClusterData):
    """Drop-in for ``torch_geometric.loader.ClusterData``: the same arguments, parts and files.

    Needs neither pyg-lib nor torch-sparse. METIS makes the clusters if ``pymetis`` is installed.
    Otherwise they are grown one by one and refined by label propagation, which cuts more edges.
    Edges count as undirected, unlike in PyG. Reading saved files never runs code in them.

    Args:
        data: A ``Data`` with ``edge_index``.
        num_parts: Number of clusters, at most the number of vertices.
        recursive: METIS only: bisect recursively instead of a k-way cut.
        save_dir: Folder that keeps the clusters in PyG's files; read from there if they exist.
        filename: Name of the file. Default: ``metis.pt``.
        log: Report on standard error that clusters are computed.
        keep_inter_cluster_edges: ``cluster_data[i]`` keeps the edges out of the cluster.
        sparse_format: ``"csr"`` orders the edges of batches by source, ``"csc"`` by destination.

    Raises:
        TypeError: ``data`` is not a ``Data``, or ``num_parts`` not an integer.
        ValueError: ``num_parts`` is below 1 or above the number of vertices, or ``sparse_format``
            is unknown.
        FormatError: The saved file has other content, or is for another graph, number of clusters
            or ``sparse_format``.

    Example:
        >>> import torch
        >>> from pagraph.pyg import ClusterData, ClusterLoader
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), num_nodes=4)
        >>> clusters = ClusterData(data, num_parts=2, log=False)
        >>> [batch.edge_index.tolist() for batch in ClusterLoader(clusters, batch_size=2)]
        [[[0, 1, 2, 3], [1, 0, 3, 2]]]
    """

    def __init__(
        self,
        data: Data,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: str = "csr",
    ) -> None:
        check_has_edges(data)
        if sparse_format not in _FORMATS:
            raise ValueError(f"sparse_format must be one of {_FORMATS}, got {sparse_format!r}")
        self.num_parts: int = as_integer("num_parts", num_parts, least=1)
        if num_parts > int(data.num_nodes or 0):
            raise ValueError(
                f"num_parts must be at most the number of vertices {data.num_nodes}, got "
                f"{num_parts}"
            )
        self.recursive = recursive
        self.keep_inter_cluster_edges = keep_inter_cluster_edges
        self.sparse_format = sparse_format
        name = f"part_{num_parts}_recursive" if recursive else f"part_{num_parts}"
        folder = os.path.join(save_dir or "", name)
        path = os.path.join(folder, filename or "metis.pt")
        if save_dir is not None and os.path.exists(path):
            self.partition = self._saved(path, data)
        else:
            if log:
                print_notice("Computing clusters...")
            clusters = self._metis(data.edge_index, int(data.num_nodes))
            self.partition = self._partition(data.edge_index, clusters)
            if save_dir is not None:
                os.makedirs(folder, exist_ok=True)
                with new_file(path) as file:
                    torch.save(self.partition, file)
            if log:
                print_notice("Done!")
        self.data = self._permute_data(data, self.partition)

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        """The cluster of each vertex, shape ``(num_nodes,)``, int64."""
        src, dst = edge_index.detach().cpu()
        graph = Graph(CSC.from_coo(src, dst, num_nodes, names=("edge_index[0]", "edge_index[1]")))
        found: Tensor = call_late(
            "vertex_clusters", graph, self.num_parts, recursive=self.recursive
        )
        return found.to(edge_index.device, torch.int64)

    def _saved(self, path: str, data: Any) -> Any:
        """The clusters in a file, checked against this graph."""
        saved = load_saved(path, classes=[Partition], advice=_REMOVE)
        if not isinstance(saved, Partition):
            raise FormatError(f"{path} must hold a PyG Partition, got {type(saved).__name__}")
        if saved.sparse_format != self.sparse_format:
            raise FormatError(
                f"{path} must be in the format {self.sparse_format!r}, got {saved.sparse_format!r}"
            )
        if not _is_partition(saved, data, self.num_parts):
            raise FormatError(
                f"{path} must hold {self.num_parts} clusters of this graph, it does not: {_REMOVE}"
            )
        on = data.edge_index.device
        return Partition(*(x.to(on) if isinstance(x, Tensor) else x for x in vars(saved).values()))


def _is_partition(saved: Any, data: Any, num_parts: int) -> bool:
    """Whether these are ``num_parts`` clusters of the graph of ``data``."""
    nodes = int(data.num_nodes)
    edges = data.edge_index.shape[1]
    arrays = saved.indptr, saved.index, saved.partptr, saved.node_perm, saved.edge_perm
    lengths = nodes + 1, edges, num_parts + 1, nodes, edges
    if not all(_is_ids(array, length) for array, length in zip(arrays, lengths, strict=True)):
        return False
    indptr, index, bounds, node_perm, edge_perm = (array.cpu() for array in arrays)
    for starts, end in ((indptr, edges), (bounds, nodes)):
        if int(starts[0]) != 0 or int(starts[-1]) != end or bool((torch.diff(starts) < 0).any()):
            return False
    for perm, count in ((node_perm, nodes), (edge_perm, edges)):
        if not torch.equal(perm.sort()[0], torch.arange(count, dtype=perm.dtype, device="cpu")):
            return False
    if edges and not (int(index.min()) >= 0 and int(index.max()) < nodes):
        return False
    rows = torch.repeat_interleave(torch.arange(nodes, device="cpu"), torch.diff(indptr))
    ends = (rows, index) if saved.sparse_format == "csr" else (index, rows)
    return torch.equal(node_perm[torch.stack(ends)], data.edge_index.cpu()[:, edge_perm])


def _is_ids(array: Any, length: int) -> bool:
    return (
        isinstance(array, Tensor)
        and array.shape == (length,)
        and array.dtype in (torch.int32, torch.int64)
    )


class ClusterLoader(SubgraphLoader, _pyg.ClusterLoader):
    """Drop-in for ``torch_geometric.loader.ClusterLoader``: same arguments, bit-identical batches.

    Threads make batches ahead of the training loop. Vertex attributes are read through a static
    cache.

    Args:
        cluster_data: The clusters: a ``ClusterData``, ours or PyG's. Changes to
            ``cluster_data.data`` take effect with the next batch. To replace it, set
            ``loader.data``.
        **kwargs: Torch's, such as ``batch_size`` (clusters) and ``shuffle``; ``cache``,
            ``cache_policy``, ``cache_dtype``, ``prefetch``, ``lookahead``, ``memory``, ``seed`` and
            ``device`` as in :class:`~pagraph.pyg.NeighborLoader`.

    Raises:
        TypeError: ``cluster_data`` is not a ``ClusterData``.
    """

    def __init__(self, cluster_data: _pyg.ClusterData, **kwargs: Unpack[LoaderOptions]) -> None:
        # Lightning passes these when it makes the loader again; the loader sets its own.
        kwargs.pop("dataset", None)
        kwargs.pop("collate_fn", None)
        if not isinstance(cluster_data, _pyg.ClusterData):
            raise TypeError(
                f"cluster_data must be a ClusterData, got {type(cluster_data).__name__}"
            )
        self.cluster_data = cluster_data
        partition = cluster_data.partition
        count = len(partition.node_perm)
        dtype = id_dtype(len(partition.node_perm), len(partition.index))
        rows = CSC(partition.indptr.cpu().to(dtype), partition.index.cpu().to(dtype), count)
        self._view: SubgraphView = SubgraphView(
            data=cluster_data.data,
            graph=Graph({EDGE_TYPE: rows}, {NODE_TYPE: count}),
            core=ClusterSampler(partition.partptr.cpu()),
            items=torch.arange(len(cluster_data), device="cpu"),
            flipped=partition.sparse_format == "csr",  # rows are sources
        )
        self._load(_joined, kwargs)


def _joined(view: SubgraphView, output: Any, reading: Reading, rows: Mapping[Name, Tensor]) -> Any:
    """The batch that PyG's loader makes of clusters, with the rows that were read."""
    batch = copy.copy(view.data)
    if reading.levels is not None:
        reading.levels.tell(reading.stores)
    for name, value in view.data.items():
        if name == "num_nodes":
            batch.num_nodes = len(output.node)
            continue
        # Vertices first, as in PyG: with equal numbers, an attribute counts as one of vertices.
        if view.data.is_node_attr(name):
            index = output.node
        elif view.data.is_edge_attr(name):
            index = output.edge
        else:
            continue  # an attribute of the graph, which the copy has
        dim = view.data.__cat_dim__(name, value)
        batch[name] = rows_of(rows, name, value, index, dim)
    batch.edge_index = stacked(output.row, output.col)
    return batch
