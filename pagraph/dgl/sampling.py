"""Drop-in for DGL's random walks: ``from pagraph.dgl import sampling``.

All other names of ``dgl.sampling`` are DGL's own objects. On graphs on a GPU, or pinned, DGL's code
walks. Random numbers follow ``torch.manual_seed``, not ``dgl.seed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..graph.csc import check_range
from ..sampling.walks import RandomWalks, Walks, most_visited
from ..seeds.keys import random_key
from ..system.checks import as_integer
from .convert import core_graph
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl import utils  # noqa: E402
from dgl.sampling import PinSAGESampler as DGLPinSAGESampler  # noqa: E402
from dgl.sampling import RandomWalkNeighborSampler as DGLNeighborSampler  # noqa: E402

if TYPE_CHECKING:
    from ..graph.graph import EdgeType

__all__ = ["PinSAGESampler", "RandomWalkNeighborSampler", "node2vec_random_walk", "random_walk"]

_sampling = dgl.sampling


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and hasattr(_sampling, name):
        return getattr(_sampling, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}, nor has {_sampling.__name__!r}"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_sampling) if not name.startswith("_"))})


def random_walk(
    g: Any,
    nodes: Any,
    *,
    metapath: Iterable[Any] | None = None,
    length: int | None = None,
    prob: str | None = None,
    restart_prob: float | Tensor | None = None,
    return_eids: bool = False,
) -> tuple[Tensor, ...]:
    """Walk at random from given vertices, like ``dgl.sampling.random_walk``.

    Args:
        g: The graph.
        nodes: Ids to start from, of the first edge type's source type; of ``g``'s id dtype.
        metapath: The edge type of each step. ``length`` is then ignored.
        length: Number of steps along the one edge type of ``g``.
        prob: Name of an edge column with weights; edge types without it are drawn from uniformly. A
            walk ends at a vertex whose edges all have weight 0, where DGL's result is undefined.
        restart_prob: Probability to end before each step: a float, or a tensor with one per step.
        return_eids: Whether to return edge ids, too.

    Returns:
        The traces, shape ``(num_starts, num_steps + 1)``, -1 after a walk's end; with
        ``return_eids`` the edge ids, shape ``(num_starts, num_steps)``; and the vertex type of each
        column.

    Raises:
        DGLError: ``g`` has several types but there is no ``metapath``; edge types are unknown or
            do not connect; a start is not in the graph; a probability is out of range, or not one
            per edge or step.
        TypeError: ``restart_prob`` is neither a float nor a tensor.
        ValueError: There is neither a ``metapath`` nor a ``length``, or no step.
    """
    if _is_dgls(g):
        return _sampling.random_walk(  # type: ignore[no-any-return]
            g,
            nodes,
            metapath=metapath,
            length=length,
            prob=prob,
            restart_prob=restart_prob,
            return_eids=return_eids,
        )
    path = _path(g, metapath, length)
    if restart_prob is not None and not isinstance(restart_prob, Tensor | float):
        raise TypeError("restart_prob should be float or Tensor.")
    if isinstance(restart_prob, float) and not 0 <= restart_prob < 1:
        raise dgl.DGLError(f"restart probability must belong to [0, 1), got {restart_prob}")
    ends = restart_prob.tolist() if isinstance(restart_prob, Tensor) else restart_prob or 0.0
    walks = _walk(g, nodes, path, with_edges=return_eids, prob=prob, end_prob=ends)
    types = [g.get_ntype_id(ntype) for ntype in (path[0][0], *(etype[2] for etype in path))]
    shown = [walks.vertices.to(g.idtype), torch.tensor(types, dtype=g.idtype, device="cpu")]
    if walks.edges is not None:
        shown.insert(1, walks.edges.to(g.idtype))
    return tuple(shown)


def node2vec_random_walk(
    g: Any,
    nodes: Any,
    p: float,
    q: float,
    walk_length: int,
    prob: str | None = None,
    return_eids: bool = False,
) -> Any:
    """Walk from given vertices like node2vec and ``dgl.sampling.node2vec_random_walk``.

    Args:
        g: A graph with one edge type, on the CPU.
        nodes: Ids to start from, of ``g``'s id dtype.
        p: Return parameter; a larger one makes steps back less likely.
        q: In-out parameter; a larger one keeps walks closer to where they have been.
        walk_length: Number of steps.
        prob: Name of an edge column with weights.
        return_eids: Whether to return edge ids, too.

    Returns:
        The traces, shape ``(num_starts, walk_length + 1)``, -1 after a walk's end; with
        ``return_eids`` a pair of them and the edge ids, shape ``(num_starts, walk_length)``.

    Raises:
        DGLError: ``p`` or ``q`` is not positive and finite; a start is not in the graph; a weight
            is negative, infinite or NaN; ``g`` has several types.
        KeyError: There is no column ``prob``.
        ValueError: ``walk_length`` is below 1.
    """
    assert g.device.type == "cpu", "Graph must be on CPU."
    if prob is not None and prob not in g.edata:
        raise KeyError(prob)
    walks = _walk(
        g, nodes, _path(g, None, walk_length), with_edges=return_eids, prob=prob, p=p, q=q
    )
    vertices = walks.vertices.to(g.idtype)
    return vertices if walks.edges is None else (vertices, walks.edges.to(g.idtype))


class RandomWalkNeighborSampler(DGLNeighborSampler):
    """Takes the vertices that short walks from a vertex visit most as its neighbours.

    Its base is ``dgl.sampling.RandomWalkNeighborSampler``.

    Args:
        G: The graph.
        num_traversals: Most times that a walk traverses the metapath.
        termination_prob: Probability to end after each traversal.
        num_random_walks: Walks from each vertex.
        num_neighbors: Most neighbours of each vertex.
        metapath: Edge types that lead back to the vertex type where they begin. Default: the one
            edge type of the graph.
        weight_column: Name of the column with the number of visits.

    Raises:
        DGLError: The edge types do not connect, or ``termination_prob`` is outside [0, 1].
        ValueError: The metapath does not lead back; there is no metapath but there are several edge
            types; or a number is below 1.
    """

    def __init__(
        self,
        G: Any,
        num_traversals: int,
        termination_prob: float,
        num_random_walks: int,
        num_neighbors: int,
        metapath: Sequence[Any] | None = None,
        weight_column: str = "weights",
    ) -> None:
        for name, number in (
            ("num_traversals", num_traversals),
            ("num_random_walks", num_random_walks),
            ("num_neighbors", num_neighbors),
        ):
            as_integer(name, number, least=1)
        if not 0 <= termination_prob <= 1:
            raise dgl.DGLError(f"termination_prob must be in [0, 1], got {termination_prob}")
        super().__init__(
            G,
            num_traversals,
            termination_prob,
            num_random_walks,
            num_neighbors,
            metapath,
            weight_column=weight_column,
        )
        self._path = _path(G, self.full_metapath, None)

    def __call__(self, seed_nodes: Any) -> Any:
        """Find neighbours of each seed.

        Args:
            seed_nodes: Ids of the type that the metapath begins at.

        Returns:
            A graph of that type with an edge from each neighbour to its seed, most visited first,
            ties by descending id. The column ``weight_column`` has the number of visits.

        Raises:
            DGLError: A seed is not in the graph.
        """
        if _is_dgls(self.G):
            return super().__call__(seed_nodes)
        seeds = utils.prepare_tensor(self.G, seed_nodes, "seed_nodes").repeat_interleave(
            self.num_random_walks
        )
        walks = _walk(self.G, seeds, self._path, end_prob=self.restart_prob.tolist())
        found = most_visited(
            walks.vertices, self.num_random_walks, self.metapath_hops, self.num_neighbors
        )
        src, dst, visits = (part.to(self.G.idtype) for part in found)
        neighbors = dgl.heterograph(
            {(self.ntype, "_E", self.ntype): (src, dst)}, {self.ntype: self.G.num_nodes(self.ntype)}
        )
        neighbors.edata[self.weight_column] = visits
        return neighbors


class PinSAGESampler(DGLPinSAGESampler, RandomWalkNeighborSampler):
    """Takes the vertices that walks to another type and back visit most as neighbours.

    Its base is ``dgl.sampling.PinSAGESampler`` (PinSAGE: Ying et al., KDD 2018).

    The graph has two vertex types, ``ntype`` and ``other_type``, and one edge type each way. Other
    arguments are those of :class:`RandomWalkNeighborSampler`; a traversal is there and back.

    Raises:
        DGLError: ``termination_prob`` is outside [0, 1].
        ValueError: A number is below 1.
    """


def _is_dgls(g: Any) -> bool:
    """Whether DGL's code walks: for graphs on a GPU or in pinned memory."""
    return bool(g.device.type != "cpu" or g.is_pinned())


def _path(g: Any, metapath: Iterable[Any] | None, length: int | None) -> list[EdgeType]:
    """The edge type of each step."""
    if metapath is not None:
        path = [g.canonical_etypes[g.get_etype_id(etype)] for etype in metapath]
        if not path:
            raise ValueError("metapath must have at least 1 edge type, got none")
        for i, (before, after) in enumerate(pairwise(path)):
            if before[2] != after[0]:
                raise dgl.DGLError(
                    f"source of edge type #{i + 1} does not match destination of edge type #{i}"
                )
        return path
    # These messages are DGL's, because scripts may match them.
    if len(g.canonical_etypes) > 1 or len(g.ntypes) > 1:
        raise dgl.DGLError("metapath not specified and the graph is not homogeneous.")
    if length is None:
        raise ValueError("Please specify either the metapath or the random walk length.")
    return list(g.canonical_etypes) * as_integer("length", length, least=1)


def _walk(
    g: Any, nodes: Any, path: list[EdgeType], *, with_edges: bool = False, **settings: Any
) -> Walks:
    """Walk along DGL's out-edges, which are the in-edges of the reversed core graph."""

    def column(edge_type: EdgeType, name: str) -> Tensor | None:
        values = g.edges[edge_type[::-1]].data.get(name)
        if values is not None and values.dim() != 1:
            raise dgl.DGLError(
                f"probability must have 1 dimension, got shape {tuple(values.shape)}"
            )
        return values  # type: ignore[no-any-return]

    starts = utils.prepare_tensor(g, nodes, "nodes")
    check_range("nodes", starts, g.num_nodes(path[0][0]), dgl.DGLError)
    try:
        walks = RandomWalks([etype[::-1] for etype in path], edge_dir="in", **settings)
        core = core_graph(g, "out")
        return walks.sample(core, starts, random_key(), with_edges=with_edges, field=column)
    except ValueError as error:
        raise dgl.DGLError(str(error)) from error
