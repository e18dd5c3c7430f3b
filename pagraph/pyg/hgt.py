"""HGTLoader and HGTSampler: PyG's arguments and batches, by our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..sampling import HGTSampler as CoreSampler
from ..sampling.hgt import MOST_NEIGHBORS
from ..system.checks import as_integer
from .filtering import node_batch
from .graphs import core_graph, local_dtype
from .inputs import check_calls, core_workload, node_input
from .package import import_pyg
from .pipelined import OURS, NodeView, Pipelined, Viewed
from .sampler import KeyedSampler

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import HeteroData  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.minibatch import Subgraph
    from ..ranking.workload import Workload
    from ..typing import Ids, LoaderOptions


class HGTSampler(KeyedSampler):
    """Drop-in for ``torch_geometric.sampler.HGTSampler``; needs no torch-sparse.

    For PyG's ``NodeLoader`` and Lightning's data modules; :class:`~pagraph.pyg.HGTLoader` makes its
    own. Samples are those of ``pagraph.sampling.HGTSampler``. Like torch-sparse, it considers at
    most 50 in-edges of a type per vertex. Each call draws one number from torch's global generator.

    Args:
        data: A ``HeteroData``.
        num_samples: Vertices drawn of each type in each hop: a list, or a mapping from vertex type
            to lists of equal lengths.
        is_sorted: Ignored: ``edge_index`` may be in any order.
        share_memory: Ignored: threads share the graph.

    Raises:
        NotImplementedError: As in PyG, if ``data`` is not a ``HeteroData``.
        TypeError: A number is not an integer, or there is no list.
        ValueError: A number is negative, a vertex type is missing or unknown, or the numbers of
            hops differ.
    """

    is_hetero = True

    def __init__(
        self,
        data: HeteroData,
        num_samples: list[int] | dict[str, list[int]],
        is_sorted: bool = False,
        share_memory: bool = False,
    ) -> None:
        if not isinstance(data, HeteroData):
            raise NotImplementedError(
                f"{type(self).__name__} does not support a data object of type {type(data)}."
            )
        self.graph = core_graph(data)
        self.node_types, self.edge_types = data.metadata()
        self.num_samples: dict[str, list[int]] = _by_type(num_samples, self.graph.node_types)
        self.num_hops: int = max(map(len, self.num_samples.values()), default=0)
        self.core = CoreSampler(
            [
                {t: numbers[hop] for t, numbers in self.num_samples.items()}
                for hop in range(self.num_hops)
            ],
            most_edges=MOST_NEIGHBORS,
        )
        self._dtype = local_dtype(data)

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
        """Raise NotImplementedError: HGSampling starts from vertices."""
        raise NotImplementedError(f"{type(self).__name__} does not sample from edges")

    def _output(self, subgraph: Subgraph) -> Any:
        output = super()._output(subgraph)
        # As in PyG: edges do not belong to hops.
        output.num_sampled_nodes = output.num_sampled_edges = None
        return output


def _by_type(num_samples: Any, node_types: list[str]) -> dict[str, list[int]]:
    """The numbers of each vertex type by hop, checked."""
    given = num_samples if isinstance(num_samples, dict) else dict.fromkeys(node_types, num_samples)
    for ntype, numbers in given.items():
        if ntype not in node_types:
            raise ValueError(
                f"num_samples must name vertex types among {node_types}, got {ntype!r}"
            )
        if not isinstance(numbers, list | tuple):
            raise TypeError(
                "num_samples must be a list of integers, or a dict of such lists, got "
                f"{num_samples!r}"
            )
    for ntype in node_types:
        if ntype not in given:
            raise ValueError(
                f"num_samples must be given for every vertex type, {ntype!r} is missing"
            )
    if len({len(numbers) for numbers in given.values()}) > 1:
        lengths = {ntype: len(numbers) for ntype, numbers in given.items()}
        raise ValueError(
            f"num_samples must have the same number of hops for all vertex types, got {lengths}"
        )
    return {
        ntype: [as_integer(f"num_samples[{ntype!r}]", number, least=0) for number in numbers]
        for ntype, numbers in given.items()
    }


class HGTLoader(Pipelined[HeteroData], _pyg.HGTLoader):
    """Drop-in for ``torch_geometric.loader.HGTLoader``: the same arguments, the same batches.

    Needs no torch-sparse. Our kernels sample batches in threads, ahead of the training loop, as in
    :class:`~pagraph.pyg.NeighborLoader`. See :class:`~pagraph.pyg.HGTSampler` for the samples.

    Args:
        data: A ``HeteroData``.
        num_samples: Vertices drawn of each type in each hop: a list, or a mapping from vertex type
            to lists of equal lengths.
        input_nodes: Seeds: a vertex type, or a pair of a type and ids or a mask; see
            :class:`~pagraph.pyg.NeighborLoader`.
        is_sorted: Ignored: ``edge_index`` may be in any order.
        transform: See :class:`~pagraph.pyg.NeighborLoader`.
        transform_sampler_output: See there.
        filter_per_worker: Ignored: threads share the data.
        **kwargs: ``cache``, ``cache_policy``, ``cache_dtype``, ``prefetch``, ``lookahead``,
            ``memory``, ``seed``, ``device`` and ``use_ddp``; ``custom_cls`` and ``input_id`` of
            PyG's ``NodeLoader``; torch's ``batch_size``, ``shuffle`` and so on: as in
            :class:`~pagraph.pyg.NeighborLoader`.

    Raises:
        NotImplementedError: As in PyG, if ``data`` is not a ``HeteroData``.
        ValueError: As in PyG and torch; also if ``num_samples`` does not fit the vertex types, a
            mask has the wrong length, or the vertex type is missing or unknown.
        TypeError: A number or ``input_nodes`` are not integers, or a transform is not callable.
        IndexError: An input node is out of range.

    Example:
        >>> import torch
        >>> from pagraph.pyg import HGTLoader
        >>> from torch_geometric.data import HeteroData
        >>> data = HeteroData()
        >>> data["paper"].x, data["author"].x = torch.arange(3.0), torch.arange(2.0)
        >>> data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
        >>> seeds = ("paper", [2, 0])
        >>> loader = HGTLoader(data, num_samples=[2], input_nodes=seeds, batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch["paper"].n_id.tolist(), batch["author"].n_id.tolist()
        ([2, 0], [1, 0])
    """

    node_sampler: HGTSampler = Viewed()  # type: ignore[assignment]

    def __init__(
        self,
        data: HeteroData,
        num_samples: list[int] | dict[str, list[int]],
        input_nodes: str | tuple[str, Ids | None],
        is_sorted: bool = False,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        others: dict[str, Any] = {**kwargs}
        options = {name: others.pop(name, default) for name, default in OURS.items()}
        given = {
            name: value
            for name, value in locals().items()
            if name not in ("options", "others", "kwargs")
        }
        self._view = NodeView()
        sampler = HGTSampler(data, num_samples)
        check_calls(sampler, "sample_from_nodes", given)
        nodes, seed_id = node_input(data, sampler, input_nodes, others.pop("input_id", None))
        _pyg.NodeLoader.__init__(
            self,
            data,
            sampler,
            input_nodes=nodes,
            input_id=seed_id,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **others,
        )
        self.input_nodes = input_nodes
        self._begin(given | options, node_batch)

    def _workload(self, order: Any) -> Workload:
        sampler = self.node_sampler
        inputs = self.input_data
        return core_workload(sampler.graph, order, {inputs.input_type: inputs.node}, sampler.core)
