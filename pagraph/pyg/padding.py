"""Fixed shapes for PyG's loaders: padded sampler outputs, and their batches."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..features.padding import Padding
from ..sampling.fixed_shapes import Sizes, empty_of, hop_parts, pad_edges, padded_nodes
from .package import import_pyg
from .sampler import NeighborSampler

import_pyg()
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.sampler import SamplerOutput  # noqa: E402
from torch_geometric.sampler.base import SubgraphType  # noqa: E402

if TYPE_CHECKING:
    from ..engine.envelope import Envelope
    from ..system.buffers import BufferPools

LABELS = "y"
"""PyG's attribute of labels, padded with values that losses ignore."""

_OWN = ("seed_mask", "shape_number")


def check_fixed(data: Any, sampler: Any, batch_size: int | None) -> None:
    """Raise ValueError if fixed shapes are not supported."""
    needs = "shapes='fixed' needs "
    if not isinstance(sampler, NeighborSampler):
        raise ValueError(
            f"{needs}the loader's own sampler, got {type(sampler).__name__}: the largest batch "
            "of another sampler is unknown"
        )
    if not isinstance(data, Data):
        raise ValueError(
            f"{needs}a Data, of one vertex type and one edge type, got {type(data).__name__}"
        )
    if batch_size is None:
        raise ValueError(f"{needs}a batch_size, got a batch_sampler")
    if sampler.subgraph_type != SubgraphType.directional or sampler.disjoint:
        kind = "disjoint trees" if sampler.disjoint else sampler.subgraph_type.value
        raise ValueError(
            f"{needs}subgraph_type='directional' without disjoint trees or times, got {kind}"
        )
    taken = [name for name in (*_OWN, "adj_t") if name in data]
    if taken:
        raise ValueError(f"{needs}data without the attributes {taken}, got one with them")


@dataclass
class PaddedOutput(SamplerOutput):
    """A sampler's output, padded to one of a loader's sizes.

    Attributes:
        sampled_nodes: The vertices without padding.
        sampled: The sizes without padding.
        sizes, number: The padded sizes, and their number among the loader's.
    """

    sampled_nodes: Tensor | None = None
    sampled: Sizes = Sizes((), ())
    sizes: Sizes = Sizes((), ())
    number: int = 0

    @classmethod
    def of(cls, output: SamplerOutput, envelope: Envelope, pools: BufferPools) -> PaddedOutput:
        """A sampler's output, padded to one of the envelope's sizes."""
        sampled = sizes_of(output)
        number = envelope.number_of(sampled)
        sizes = envelope.sizes[number]
        empty = empty_of(pools)
        nodes, moved = padded_nodes(output.node, sampled, sizes, output.row, empty)
        ends = output.row, output.col
        edge_index, edge_ids = pad_edges(ends, output.edge, moved, sampled, sizes, empty)
        input_id, seed_time = output.metadata
        # Hop 0 has an extra vertex, the destination of padding edges.
        places = torch.full((sizes.nodes[0] - 1,), -1, dtype=input_id.dtype, device="cpu")
        places[: len(input_id)] = input_id
        return cls(
            nodes,
            edge_index[0],
            edge_index[1],
            edge_ids,
            num_sampled_nodes=list(sizes.nodes),
            num_sampled_edges=list(sizes.edges),
            metadata=(places, seed_time),
            sampled_nodes=output.node,
            sampled=sampled,
            sizes=sizes,
            number=number,
        )

    def padding(self, name: str) -> Padding:
        """The padding of a vertex attribute."""
        return Padding(self.sampled.nodes, self.sizes.nodes, marks=name == LABELS)

    def selectable(self) -> PaddedOutput:
        """A copy with vertex 0 and edge 0 as padding, so that PyG can index with it."""
        other = copy.copy(self)
        # NumPy: torch would wake its thread pool.
        other.node = torch.from_numpy(np.maximum(self.node.numpy(), 0))
        other.edge = torch.from_numpy(np.maximum(self.edge.numpy(), 0))
        return other

    def finish(
        self, batch: Any, used: PaddedOutput, by_vertex: list[str], by_edge: list[str]
    ) -> None:
        """Put the padding of this output into PyG's batch.

        Args:
            batch: The batch.
            used: The :meth:`selectable` output that PyG made it from.
            by_vertex, by_edge: Attributes whose rows PyG has selected.

        Raises:
            ValueError: One of them is not a tensor, or its dtype cannot hold the padding label.
        """
        mapping = batch._store._mapping
        for name, given, own in (("n_id", used.node, self.node), ("e_id", used.edge, self.edge)):
            if mapping.get(name) is given:  # not a user's attribute
                mapping[name] = own
        for names, of_hops in ((by_vertex, 0), (by_edge, 1)):
            for name in names:
                values = mapping[name]
                if not isinstance(values, Tensor):
                    raise ValueError(
                        f"shapes='fixed' needs attributes that are tensors, got {name!r} of the "
                        f"type {type(values).__name__}"
                    )
                value = self.padding(name).value(values.dtype)
                dim = batch.__cat_dim__(name, values)
                for part in hop_parts(self.sampled[of_hops], self.sizes[of_hops]):
                    begin = part.padding.start
                    values.narrow(dim, begin, part.padding.stop - begin).fill_(value)
        count = len(self.metadata[0])
        mapping["seed_mask"] = torch.arange(count, device="cpu") < self.sampled.nodes[0]
        mapping["shape_number"] = self.number


def sizes_of(output: SamplerOutput) -> Sizes:
    """The sizes of a sampler's output."""
    return Sizes(tuple(output.num_sampled_nodes), tuple(output.num_sampled_edges))
