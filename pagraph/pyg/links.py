"""Links as seeds: pairs, labels, times and negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..graph.fields import FieldVersion
from ..graph.graph import NODE_TYPE, Graph
from ..sampling.batches import PairNegatives, PairSeeds
from ..sampling.negative import HardNegatives as CoreNegatives
from ..sampling.negative import HardPairs, NegativeEnds
from ..system.checks import kind_of
from .package import import_pyg
from .times import check_times

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.sampler import NegativeSampling  # noqa: E402


def end_types(input_type: tuple[str, str, str] | None) -> tuple[str, str]:
    """The vertex types of both ends of links."""
    return (NODE_TYPE, NODE_TYPE) if input_type is None else (input_type[0], input_type[-1])


class LinkNegatives:
    """PyG's ``NegativeSampling`` as the core's, memoized until weights or times change."""

    def __init__(self, num_nodes: Mapping[str, int]) -> None:
        self._num_nodes = num_nodes
        self._made: dict[tuple[str, str], tuple[list[FieldVersion | None], NegativeEnds]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A version does not outlive its process.
        return {"_num_nodes": self._num_nodes, "_made": {}}

    def of(
        self,
        neg_sampling: Any,
        types: tuple[str, str],
        node_times: Mapping[str, Tensor],
        window: float | None = None,
    ) -> PairNegatives | None:
        """The negatives of links between two types of vertices; None without ``neg_sampling``.

        ``node_times`` are the vertices' times by type. For ``window`` see ``PairNegatives``.
        Raises TypeError or ValueError for invalid weights.
        """
        if neg_sampling is None:
            return None
        ends = {}
        for end, ntype in zip(("src", "dst"), types, strict=True):
            name = f"{end}_weight"
            weight = getattr(neg_sampling, name)
            if end == "dst" or neg_sampling.is_binary():
                ends[end] = self._ends(name, ntype, weight, node_times.get(ntype))
        return PairNegatives(neg_sampling.amount, ends["dst"], ends.get("src"), window)

    def _ends(self, name: str, ntype: str, weight: Any, time: Tensor | None) -> NegativeEnds:
        if weight is not None and not isinstance(weight, Tensor):
            raise TypeError(f"{name} must be a tensor of numbers, got {type(weight).__name__}")
        place = (ntype, "" if weight is None else name)
        versions = [None if each is None else FieldVersion.of(each) for each in (weight, time)]
        known = self._made.get(place)
        if known is None or known[0] != versions:  # concurrent threads make the same
            count = self._num_nodes[ntype]
            if weight is not None and weight.numel() != count:
                raise ValueError(
                    "The 'weight' attribute in 'NegativeSampling' needs to match the number of "
                    f"nodes {count} "
                    f"(got {weight.numel()})"
                )
            known = self._made[place] = (versions, NegativeEnds(count, weight, time, name=name))
        return known[1]


class HardNegatives(NegativeSampling):
    """Hard negative destinations for the sources of links.

    For ``neg_sampling=`` of ``pagraph.pyg.LinkNeighborLoader``, like PyG's ``NegativeSampling``. A
    source with edges to all destinations gets no negative in binary mode, and is an error in
    triplet mode. See ``pagraph.sampling.HardNegatives``.

    Args:
        mode: ``"binary"`` or ``"triplet"``. A binary negative keeps its link's source (PyG draws
            another).
        amount: Negatives per link; an integer for triplets.
        power: Draw in proportion to this power of the in-degree: 0 is uniform, 0.75 is word2vec's.
        among: Draw only these vertices: ids, or a mask of all; or a mapping from vertex type to
            either.
        in_batch: Draw from the destinations of the batch's other links.
        exclude_edges: Draw no destination to which the source has an edge of the links' type.

    Raises:
        ValueError: As in PyG, for mode and amount; ``power`` is negative, infinite or NaN, or given
            with ``in_batch``.
        TypeError: A value has the wrong type.

    Example:
        >>> import torch
        >>> from pagraph.pyg import HardNegatives, LinkNeighborLoader
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0, 0, 1], [1, 2, 2]]), num_nodes=3)
        >>> pairs = torch.tensor([[0], [1]])
        >>> loader = LinkNeighborLoader(data, [1], pairs, neg_sampling=HardNegatives("binary"))
        >>> batch = next(iter(loader))
        >>> batch.n_id[batch.edge_label_index].tolist(), batch.edge_label.tolist()
        ([[0, 0], [1, 0]], [1.0, 0.0])
    """

    def __init__(
        self,
        mode: Any,
        amount: float = 1,
        *,
        power: float = 0.0,
        among: Any = None,
        in_batch: bool = False,
        exclude_edges: bool = True,
    ) -> None:
        super().__init__(mode, amount)
        self.core: CoreNegatives = CoreNegatives(1, power, among, in_batch, exclude_edges)

    def sample(self, *args: Any, **kwargs: Any) -> Tensor:
        """Raise NotImplementedError: PyG's samplers do not pass the sources."""
        raise NotImplementedError("HardNegatives need the loader or the sampler of pagraph.pyg")

    def of(
        self, graph: Graph, edge_type: tuple[str, str, str] | None, *, temporal: bool
    ) -> HardPairs:
        """The core's negatives of the links of one type (None: the only one).

        Raises:
            ValueError: Links have times, or the graph has no such edges.
        """
        if temporal:
            raise ValueError(
                "neg_sampling must be PyG's NegativeSampling for links with times, got "
                "HardNegatives"
            )
        etype = graph.edge_types[0] if edge_type is None else edge_type
        if etype not in graph.edge_types:
            raise ValueError(
                f"HardNegatives need the edges of {etype}, the graph has {graph.edge_types}"
            )
        return HardPairs(
            self.amount, self.core.ends(graph.csc_of(etype), etype[2]), self.is_binary()
        )


def link_metadata(
    inputs: Any, pairs: PairSeeds, negatives: PairNegatives | HardPairs | None
) -> tuple[Any, ...]:
    """Metadata for PyG's ``LinkLoader``; ids are positions among the sampled vertices.

    Returns:
        ``input_id``, ``edge_label_index`` of shape ``(2, p + q)``, ``edge_label`` or None, and the
        pairs' times or None. For triplets: ``input_id``, ``src_index`` and ``dst_pos_index`` of
        shape ``(p,)``, ``dst_neg_index`` of shape ``(p,)`` or ``(p, amount)``, and the pairs' times
        or None.
    """
    count = len(inputs.row)
    time = inputs.time
    if negatives is not None and not negatives.has_sources:
        amount = -1 if count else int(negatives.amount)
        negative = pairs.dst[count:].view(amount, count).t().contiguous().squeeze(-1)
        return inputs.input_id, pairs.src, pairs.dst[:count], negative, time
    label = inputs.label
    if negatives is not None:
        drawn = len(pairs.src) - count
        label = torch.ones(count, device="cpu") if label is None else label
        label = torch.cat([label, label.new_zeros((drawn, *label.shape[1:]))])
        if time is not None:
            time = time[torch.arange(count + drawn, device="cpu") % max(1, count)]
    return inputs.input_id, torch.stack([pairs.src, pairs.dst]), label, time


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def checked_edge_label_index(data: Any, edge_label_index: Any) -> Any:
    """``edge_label_index`` in a form that PyG accepts: arrays as tensors, full edge types.

    Raises:
        TypeError: Links are not integers.
        ValueError: Links do not have two rows, or are missing without edges to use instead, or lack
            an edge type in data of several types.
    """
    if isinstance(data, Data):
        if edge_label_index is None and data.edge_index is None:
            raise ValueError("edge_label_index must be given if data has no edge_index, got None")
        return edge_label_index if edge_label_index is None else _checked_rows(edge_label_index)
    edge_type = edge_label_index
    links = None
    is_pair = isinstance(edge_label_index, list | tuple) and len(edge_label_index) == 2
    if is_pair and not _is_edge_type(edge_label_index):
        edge_type, links = edge_label_index
    # The edges of a pair of stores may have no type.
    untyped = is_pair and edge_type is None and isinstance(data, tuple)
    if not (untyped or _is_edge_type(edge_type)) or _is_edge_type(links):
        several = _names_several(edge_label_index)
        raise ValueError(
            "edge_label_index must be an edge type or a pair of an edge type and links (or None), "
            f"got {kind_of(edge_label_index)}"
            f"{': make one loader for each edge type' if several else ''}"
        )
    if links is not None:
        return edge_type, _checked_rows(links)
    if isinstance(data, HeteroData):
        found = data._to_canonical(*edge_type)
        if found not in data.edge_types or data[found].get("edge_index") is None:
            raise ValueError(
                "edge_label_index must name an edge type that has an edge_index, got "
                f"{tuple(edge_type)}"
            )
    return edge_label_index


def _is_edge_type(value: Any) -> bool:
    """Whether a value is an edge type, or the two vertex types of one, in PyG's forms."""
    is_of_words = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return is_of_words and len(value) in (2, 3)


def _names_several(value: Any) -> bool:
    """Whether a value holds several edge types, each alone or with its links."""
    items = value if isinstance(value, list | tuple | Mapping) else ()
    pairs = [each for each in items if isinstance(each, list | tuple) and each]
    return sum(_is_edge_type(pair) or _is_edge_type(pair[0]) for pair in pairs) > 1


def _checked_rows(links: Any) -> Tensor:
    if isinstance(links, np.ndarray):
        links = torch.from_numpy(links)
    if not isinstance(links, Tensor) or links.dtype not in _INTEGERS:
        got = links.dtype if isinstance(links, Tensor) else type(links).__name__
        raise TypeError(f"edge_label_index must be a tensor of integers, got {got}")
    if links.dim() != 2 or len(links) != 2:
        raise ValueError(
            f"edge_label_index must have shape (2, num_links), got {tuple(links.shape)}"
        )
    return links


def check_are_tensors(**arguments: Any) -> None:
    """Raise TypeError for an argument that is neither a tensor nor None."""
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor or None, got {type(value).__name__}")


def check_links(inputs: Any, graph: Graph | None) -> None:
    """Check links, labels and times (PyG's ``EdgeSamplerInput``), also against a known graph.

    Raises:
        IndexError: A link has an end outside the graph.
        TypeError: Times are not integers or floats.
        ValueError: The number of labels or times is not that of links, a time is missing, or a
            vertex type is unknown.
    """
    if graph is not None:
        _check_ends(inputs, graph)
    count = len(inputs.row)
    if inputs.input_id is not None and len(inputs.input_id) != count:
        raise ValueError(
            f"input_id must have one entry per link ({count}), got {len(inputs.input_id)}"
        )
    if inputs.label is not None and (inputs.label.dim() == 0 or len(inputs.label) != count):
        got = tuple(inputs.label.shape)
        raise ValueError(f"edge_label must have one label per link ({count}), got shape {got}")
    check_times("edge_label_time", inputs.time, count, "link")


def _check_ends(inputs: Any, graph: Graph) -> None:
    types = end_types(inputs.input_type)
    for row, (ids, ntype) in enumerate(zip((inputs.row, inputs.col), types, strict=True)):
        if ntype not in graph.node_types:
            raise ValueError(
                "edge_label_index must name an edge type between vertex types among "
                f"{graph.node_types}, got {ntype!r}"
            )
        check_range(f"edge_label_index[{row}]", ids, graph.num_nodes_of(ntype), IndexError)
