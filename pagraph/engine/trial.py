"""Trial: one batch that is sampled to see how many rows it reads, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..cache.choice import Role
from ..graph.subgraph import Subgraph
from ..ranking.policies import spread_seeds
from ..seeds.keys import derive_key

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..ranking.policy import RowType
    from ..ranking.workload import Sampled


_SEEDS = 256
"""Seeds that are tried, in batches of the loader's size: small batches differ more."""

_MOST_TRIALS = 8
"""Batches of which the largest counts: the first batch of an epoch waits for them."""

_KEY = 0x706C616E
"""The word "plan": keeps the keys of trials apart from those of batches."""


@dataclass(frozen=True)
class Trial:
    """The largest of a few sampled batches.

    Attributes:
        inputs, outputs: Input nodes and seeds by vertex type.
        edges: Edges by edge type.
        frontier: Vertices that drew neighbours, each once.
        nbytes: Bytes without the rows of fields.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    edges: Mapping[EdgeType, int] = field(default_factory=dict)
    frontier: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, now: Sampled, batch_size: int) -> Trial | None:
        """Sample batches as a loader does, of seeds from all over; None where only a user's own
        code can."""
        if now.sampler is None:
            return None
        count = max(1, min(_MOST_TRIALS, _SEEDS // batch_size))
        trials = []
        for place in range(count):
            seeds = spread_seeds(now.seeds, batch_size, place / count)
            trials.append(
                cls._of(now.sampler.sample(now.graph, seeds, derive_key(_KEY, place)), now.graph)
            )
        return max(trials, key=lambda trial: (sum(trial.inputs.values()), trial.nbytes))

    @classmethod
    def _of(cls, batch: Any, graph: Graph) -> Trial:
        nbytes = _tensor_bytes(batch, set())
        if isinstance(batch, Subgraph):
            # The ids of edges take memory only once they are asked for; a loader asks.
            nbytes += sum(
                8 * part.num_edges for part in batch.edges.values() if part.ids_of is not None
            )
            frontier = sum(ends[-2] for ends in batch.hop_ends.values() if len(ends) > 1)
            edges = {t: part.num_edges for t, part in batch.edges.items()}
            return cls(
                _lengths(batch.input_nodes, graph),
                _lengths(batch.output_nodes, graph),
                edges,
                frontier,
                nbytes,
            )
        edges = dict.fromkeys(graph.edge_types, 0)
        frontier = 0
        for block in batch.blocks:
            num_dst = block.num_dst
            if isinstance(num_dst, Mapping):
                num_dst = sum(num_dst.values())
            frontier = max(frontier, num_dst)
            for etype, part in getattr(block, "relations", {graph.edge_types[0]: block}).items():
                edges[etype] += part.num_edges
        return cls(
            _lengths(batch.input_nodes, graph),
            _lengths(batch.output_nodes, graph),
            edges,
            frontier,
            nbytes,
        )

    def rows(
        self, row_type: RowType | None, role: Role, edge_types: Mapping[EdgeType, EdgeType]
    ) -> int:
        """Rows that a batch reads of a field; ``edge_types`` name those of the field in the sampled
        graph."""
        outputs = sum(self.outputs.values())
        if isinstance(row_type, tuple):
            inputs = self.edges.get(edge_types.get(row_type, row_type), 0)
        elif row_type is None:  # Of edges that were not declared, say: as many as there may be.
            inputs = sum(self.edges.values())
        else:
            inputs = self.inputs.get(row_type, 0)
            outputs = self.outputs.get(row_type, 0)
        return inputs * (Role.INPUT in role) + outputs * (Role.OUTPUT in role)


def _lengths(nodes: Tensor | Mapping[str, Tensor], graph: Graph) -> dict[str, int]:
    """Vertices by type."""
    by_type = nodes if isinstance(nodes, Mapping) else {graph.only_node_type: nodes}
    return {t: len(ids) for t, ids in by_type.items()}


def _tensor_bytes(value: Any, seen: set[int]) -> int:
    """Bytes of the memory behind all tensors in a batch, each storage once."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in seen:  # Vertices of inner blocks are views of the outermost's.
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if is_dataclass(value):
        return sum(_tensor_bytes(getattr(value, each.name), seen) for each in fields(value))
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(part, seen) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(part, seen) for part in value)
    return 0
