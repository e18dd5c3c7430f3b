"""NeighborSampler: drop-in for PyG's, on our kernels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.minibatch import Subgraph
from ..sampling import SubgraphSampler
from ..sampling.batches import PairNegatives, pair_seeds
from ..sampling.negative import HardPairs
from ..sampling.sampler import own_fields
from ..sampling.times import check_time_fields, one_kind
from ..seeds.keys import random_key
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from .graphs import core_graph, has_types, local_dtype
from .links import HardNegatives, LinkNegatives, end_types, link_metadata
from .package import import_pyg
from .times import Fields, times_of, weights_of

import_pyg()
from torch_geometric.sampler import (  # noqa: E402
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_geometric.data import Data, HeteroData

    from .typing import Stores

    Fanouts: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]] | NumNeighbors

_Type = TypeVar("_Type")


def num_neighbors_of(num_neighbors: Any) -> NumNeighbors:
    """``num_neighbors`` in any of PyG's forms as a ``NumNeighbors``, or TypeError."""
    if isinstance(num_neighbors, NumNeighbors):
        return num_neighbors
    lists = num_neighbors.values() if isinstance(num_neighbors, dict) else [num_neighbors]
    if not all(isinstance(numbers, list | tuple) for numbers in lists):
        raise TypeError(
            "num_neighbors must be a list of integers, or a dict of such lists, got "
            f"{num_neighbors!r}"
        )
    return NumNeighbors(num_neighbors)


def fanouts_of(
    num_neighbors: NumNeighbors, graph: Graph, *, hetero: bool
) -> list[dict[EdgeType, int]]:
    """Fanouts by hop in DGL's order (the seeds' last), each by edge type; -1 for all neighbours.

    With ``hetero``, ``num_neighbors`` (in PyG's order) may name the graph's edge types.

    Raises:
        TypeError: A fanout is not an integer, or edge types are named for a homogeneous graph.
        ValueError: As in PyG: an edge type is missing or unknown, or the numbers of hops differ.
    """
    types = graph.edge_types
    named = types if hetero else None
    values = num_neighbors.get_values(named)
    if isinstance(values, Mapping) and not hetero:
        raise TypeError(
            f"num_neighbors must be a list for a graph without edge types, got {values!r}"
        )
    by_type = dict(values) if isinstance(values, Mapping) else dict.fromkeys(types, values)
    hops = num_neighbors.num_hops  # set even without edge types
    fanouts = []
    for hop in reversed(range(hops)):
        name = f"num_neighbors[{hop}]"
        fanouts.append({t: max(-1, as_integer(name, by_type[t][hop])) for t in types})
    return fanouts


_DIRECTED = (  # in PyG's words
    "The usage of the 'directed' argument in 'NeighborSampler' is deprecated. Use "
    "`subgraph_type='induced'` instead."
)
_SUBGRAPH_TYPES = [str(kind.value) for kind in SubgraphType]


def output_of(subgraph: Subgraph, *, hetero: bool) -> SamplerOutput | HeteroSamplerOutput:
    """A subgraph as PyG's samplers return it.

    ``edge`` has the user's edge ids, so there is no permutation.
    """
    nodes = subgraph.input_nodes
    trees = subgraph.trees
    # Inlined: with many types, these calls outnumber those of sampling.
    sizes = {}
    for ntype, ends in subgraph.hop_ends.items():
        sizes[ntype] = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    row = {}
    col = {}
    edge_ids = {}
    counts = {}
    for etype, edges in subgraph.edges.items():
        row[etype], col[etype] = edges.edge_index.unbind(0)
        edge_ids[etype] = edges.numbers if edges.ids_of is None else edges.edge_ids
        ends = edges.hop_ends
        counts[etype] = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    if hetero:
        return HeteroSamplerOutput(
            node=nodes,
            row=row,
            col=col,
            edge=edge_ids,
            batch=trees,
            num_sampled_nodes=sizes,
            num_sampled_edges=counts,
        )
    ((etype, number),) = counts.items()
    labels = None if trees is None else trees[NODE_TYPE]
    return SamplerOutput(
        node=nodes[NODE_TYPE],
        row=row[etype],
        col=col[etype],
        edge=edge_ids[etype],
        batch=labels,
        num_sampled_nodes=sizes[NODE_TYPE],
        num_sampled_edges=number,
    )


def owned(subgraph: Subgraph, owners: Tensor) -> Subgraph:
    """The subgraph with ``owners`` as labels of its trees, instead of their numbers."""
    assert subgraph.trees is not None
    return replace(subgraph, trees={t: owners[of] for t, of in subgraph.trees.items()})


class Draw(Protocol):
    """Draws a subgraph instead of the core's sampler."""

    def __call__(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        times: Mapping[str, Tensor] | None,
        key: int,
        owners: Tensor | None,
    ) -> Subgraph:
        """The subgraph of seeds.

        Args:
            seeds: The seeds, by type if there are several.
            times: Times of the seeds, see ``SubgraphSampler.sample``.
            key: Key of the random numbers.
            owners: Labels of the trees, by number; None: their numbers.
        """


class KeyedSampler(BaseSampler):
    """Base of our samplers: a batch is a pure function of its inputs and a key.

    Attributes:
        graph: The graph that ``core`` samples.
        core: The sampler, which draws a :class:`~pagraph.graph.minibatch.Subgraph`.
        is_hetero: Whether samples are by vertex and edge type.
    """

    graph: Graph
    core: Any
    is_hetero: bool
    _dtype: torch.dtype

    def sample_from_nodes(
        self, inputs: NodeSamplerInput, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """See ``BaseSampler.sample_from_nodes``."""
        return self.sample_nodes(inputs, random_key())[0]

    def sample_nodes(
        self,
        inputs: NodeSamplerInput,
        key: int,
        pools: BufferPools | None = None,
        draw: Draw | None = None,
    ) -> tuple[SamplerOutput | HeteroSamplerOutput, dict[str, list[int]]]:
        """Sample the subgraph of vertices; a pure function of inputs and key. Thread-safe.

        Args:
            inputs: PyG's input.
            key: Key of the random numbers, 64 bits.
            pools: Recycled memory.
            draw: Draws instead of the core's sampler.

        Returns:
            The output of PyG's samplers, and for each vertex type the number of vertices known
            after each hop.
        """
        seeds = {inputs.input_type or NODE_TYPE: inputs.node}
        if draw is not None:
            subgraph = draw(*self.begins(inputs), key, None)
        else:
            subgraph = self.core.sample(
                self.graph, seeds, key, dtype=self._dtype, pools=pools, **self._more(inputs)
            )
        output = self._output(subgraph)
        output.metadata = (inputs.input_id, inputs.time)
        return output, subgraph.hop_ends

    def begins(
        self, inputs: NodeSamplerInput
    ) -> tuple[Tensor | dict[str, Tensor], dict[str, Tensor] | None]:
        """The seeds of a batch, by type where there are several, and their times.

        The times are None if edges are not drawn by time, or none were given.
        """
        return {inputs.input_type: inputs.node} if self.is_hetero else inputs.node, None

    def _more(self, inputs: NodeSamplerInput) -> dict[str, Any]:
        """Arguments of ``core.sample`` beyond the common ones."""
        return {}

    def _output(self, subgraph: Subgraph) -> SamplerOutput | HeteroSamplerOutput:
        return output_of(subgraph, hetero=self.is_hetero)


class NeighborSampler(KeyedSampler):
    """Drop-in for ``torch_geometric.sampler.NeighborSampler``; without pyg-lib or torch-sparse.

    For PyG's ``NodeLoader`` and ``LinkLoader``, and Lightning's data modules;
    ``pagraph.pyg.NeighborLoader`` makes its own. Each call draws one number from torch's global
    generator. Unlike in PyG, induced subgraphs may be disjoint and have times. They then have the
    edges within each tree that are not later than its seed.

    In-place writes to times and weights take effect with the next batch; replacing their tensors
    has no effect. ``batch_dependency`` works with pagraph's loaders, see
    :class:`~pagraph.pyg.NeighborLoader`. Other loaders do not pass a batch's position in the epoch,
    so their batches are independent.

    Raises:
        ValueError: As in PyG, but earlier; also for an unknown ``subgraph_type`` or
            ``temporal_strategy``.
        RuntimeError: As in PyG, for weights together with times.
        KeyError, TypeError, ValueError: No edge has weights, or they are not finite and at least 0;
            times are not integers or floats, or mix both; a window is not a positive number.
    """

    def __init__(
        self,
        data: Data | HeteroData | Stores,
        num_neighbors: Fanouts,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        *,
        batch_dependency: int = 1,
        time_window: float | Mapping[EdgeType, float] | None = None,
        share_trees: bool = False,
    ) -> None:
        if temporal_strategy not in ("uniform", "last"):
            raise ValueError(
                f"temporal_strategy must be 'uniform' or 'last', got {temporal_strategy!r}"
            )
        if not directed:
            subgraph_type = SubgraphType.induced
            warnings.warn(_DIRECTED, stacklevel=2)
        if not isinstance(subgraph_type, SubgraphType) and subgraph_type not in _SUBGRAPH_TYPES:
            raise ValueError(
                f"subgraph_type must be one of {_SUBGRAPH_TYPES}, got {subgraph_type!r}"
            )
        self.subgraph_type = SubgraphType(subgraph_type)
        self.temporal_strategy = temporal_strategy
        self._time = time_attr
        self._weight = weight_attr
        self._time_window = time_window
        self._share_trees = share_trees
        self.replace = replace
        self._disjoint = disjoint
        self._batch_dependency = batch_dependency
        self.graph = core_graph(data)
        self.is_hetero = has_types(data)
        self._dtype = local_dtype(data)
        self._times = Fields() if time_attr is None else times_of(data, time_attr)
        weights = Fields() if weight_attr is None else weights_of(data, weight_attr)
        if time_attr is not None and weight_attr is not None:
            level = "node" if self._times.nodes else "edge"
            raise RuntimeError(f"Biased {level} temporal sampling not yet supported")
        if time_attr is not None:
            self.graph = self._times.with_graph(self.graph, time_attr)
        if weight_attr is not None:
            self.graph = weights.with_graph(self.graph, weight_attr)
        self.num_neighbors = num_neighbors
        self.times_are_floats: bool = False
        if time_attr is not None:
            dtypes = check_time_fields(
                self.graph, time_attr, own_fields(self.graph), self.core.time_window
            )
            self.times_are_floats = one_kind(dtypes)
        # Checked and sorted now, so that errors come early and the first batch does not wait.
        for etype in self.graph.edge_types:
            self.core.times(self.graph, etype, own_fields(self.graph))
            self.core.weights(self.graph, etype, own_fields(self.graph))
        self._negatives = LinkNegatives(self.graph.num_nodes_by_type)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of ids in samples."""
        return self._dtype

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Number of vertices, by type if there are several."""
        counts = self.graph.num_nodes_by_type
        return counts if self.is_hetero else counts[NODE_TYPE]

    @property
    def node_time(self) -> Tensor | dict[str, Tensor] | None:
        """The vertices' times, by type if there are several; None without any."""
        return self._by_type(self._times.nodes)

    @property
    def edge_time(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """The edges' times, by type if there are several; None without any.

        In the order of ``edge_index`` (PyG's sampler: in the order of its sorted edges).
        """
        return self._by_type(self._times.edges)

    def _by_type(self, values: dict[_Type, Tensor]) -> Tensor | dict[_Type, Tensor] | None:
        if not values:
            return None
        return values if self.is_hetero else next(iter(values.values()))

    @property
    def is_temporal(self) -> bool:
        """Whether edges are drawn by time."""
        return self._time is not None

    def check_seed_times(
        self, name: str, times: Tensor | None, node_type: str | None = None
    ) -> None:
        """Check the seeds' times, the argument ``name``.

        Raises:
            TypeError: They are integers and the data's are floats, or vice versa.
            ValueError: They are missing, and the seeds' type has none either.
        """
        if times is not None:
            if self.is_temporal and times.is_floating_point() != self.times_are_floats:
                kind = "floats" if self.times_are_floats else "integers"
                raise TypeError(
                    f"{name} must be {kind}, like the data's {self._time!r}, got {times.dtype}"
                )
        elif self.is_temporal and (node_type or NODE_TYPE) not in self._times.nodes:
            whose = "input nodes" if node_type is None else f"input nodes of type {node_type!r}"
            raise ValueError(
                f"{name} must be given, as the {whose} have no {self._time!r} attribute"
            )

    @property
    def disjoint(self) -> bool:
        """Whether there is a tree for each seed; always with times."""
        return self._disjoint or self.is_temporal

    @property
    def num_neighbors(self) -> NumNeighbors:
        """Fanouts by hop, in PyG's order."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        self._num_neighbors = num_neighbors_of(num_neighbors)
        fanouts = fanouts_of(self._num_neighbors, self.graph, hetero=self.is_hetero)
        self.core = SubgraphSampler(
            fanouts,
            replace=self.replace,
            prob=self._weight,
            disjoint=self.disjoint,
            induced=self.subgraph_type == SubgraphType.induced,
            time=self._time,
            latest=self.temporal_strategy == "last",
            batch_dependency=self._batch_dependency,
            time_window=self._time_window,
            share_trees=self._share_trees,
        )

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """See ``BaseSampler.sample_from_edges``."""
        return self.sample_edges(inputs, neg_sampling, random_key())[0]

    def begins(
        self, inputs: NodeSamplerInput
    ) -> tuple[Tensor | dict[str, Tensor], dict[str, Tensor] | None]:
        """See ``KeyedSampler``."""
        seeds = {inputs.input_type: inputs.node} if self.is_hetero else inputs.node
        timed = self._time is not None and inputs.time is not None
        return seeds, {inputs.input_type or NODE_TYPE: inputs.time} if timed else None

    def _more(self, inputs: NodeSamplerInput) -> dict[str, Any]:
        _, times = self.begins(inputs)
        return {"seed_times": times}

    def sample_edges(
        self,
        inputs: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None,
        key: int,
        pools: BufferPools | None = None,
        draw: Draw | None = None,
    ) -> tuple[SamplerOutput | HeteroSamplerOutput, dict[str, list[int]]]:
        """Sample the subgraph of the ends of links and negatives; see :meth:`sample_nodes`.

        In disjoint subgraphs, all that is sampled for a link or its negatives has the link's number
        in ``batch``. Negative ``j`` of ``p`` links belongs to link ``j % p``. A link's ends and
        negatives have its time.
        """
        types = end_types(inputs.input_type)
        negatives = self.link_negatives(neg_sampling, inputs.input_type)
        src = inputs.row.long()
        dst = inputs.col.long()
        times = inputs.time if self.is_temporal else None
        apart = self.disjoint and not self.core.share_trees
        pairs = pair_seeds(types, src, dst, key, negatives=negatives, disjoint=apart, times=times)
        owners = None
        if pairs.owners is not None:
            owners = torch.cat(
                [pairs.owners[ntype] for ntype in self.graph.node_types if ntype in pairs.owners]
            )
        if draw is not None:
            seeds: Any = pairs.nodes if self.is_hetero else pairs.nodes[NODE_TYPE]
            subgraph = draw(seeds, pairs.times, key, owners)
        else:
            settings: dict[str, Any] = {"dtype": self._dtype, "pools": pools}
            settings["seed_times"] = pairs.times
            subgraph = self.core.sample(self.graph, pairs.nodes, key, **settings)
            if owners is not None:
                subgraph = owned(subgraph, owners)
        output = self._output(subgraph)
        output.metadata = link_metadata(inputs, pairs, negatives)
        return output, subgraph.hop_ends

    def link_negatives(
        self, neg_sampling: NegativeSampling | None, link_type: EdgeType | None
    ) -> PairNegatives | HardPairs | None:
        """The core's negatives for links of a type; TypeError or ValueError for invalid weights."""
        if isinstance(neg_sampling, HardNegatives):
            return neg_sampling.of(self.graph, link_type, temporal=self.is_temporal)
        window = self.core.window(link_type or EDGE_TYPE)
        return self._negatives.of(neg_sampling, end_types(link_type), self._times.nodes, window)

    def _output(self, subgraph: Subgraph) -> SamplerOutput | HeteroSamplerOutput:
        output = super()._output(subgraph)
        if self.subgraph_type == SubgraphType.induced:  # has no hops
            output.num_sampled_nodes = output.num_sampled_edges = None
        if self.subgraph_type == SubgraphType.bidirectional:
            return output.to_bidirectional()
        return output
