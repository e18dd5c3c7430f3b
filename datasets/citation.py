"""Papers, authors and institutions: a heterograph in the proportions of ogbn-mag (Hu et al., NeurIPS 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ..graph.graph import CSC, EdgeType, Graph
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .edges import csc_of_pairs
from .random_fields import check_fractions, random_labels, random_masks
from .sbm import MAX_NODES, Blocks, check_model, draw_edges, noisy_features, power_weights

__all__ = ["citation"]

_WRITES: EdgeType = ("author", "writes", "paper")
_CITES: EdgeType = ("paper", "cites", "paper")
_WORKS: EdgeType = ("author", "affiliated_with", "institution")
_REVERSES: dict[EdgeType, EdgeType] = {
    _WRITES: ("paper", "written_by", "author"),
    _WORKS: ("institution", "employs", "author"),
}
_TYPES = ("paper", "author", "institution")


def citation(
    num_papers: int,
    *,
    num_authors: int | None = None,
    num_institutions: int | None = None,
    authorships: float = 9.5,
    citations: float = 7.5,
    num_classes: int = 10,
    homophily: float = 0.55,
    exponent: float = 2.5,
    num_features: int = 64,
    num_author_features: int = 32,
    feature_noise: float = 0.45,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Generate a heterograph whose papers' fields of study a relational GNN can learn and an MLP cannot.

    Every paper, author and institution has a field of study, and the edges of each type are those of a block model
    between fields; see :func:`~pagraph.datasets.sbm` for that, for the features of papers and authors (institutions
    have none), and for how often a model that sees a paper's features alone can be right.

    The edge types are author/writes/paper, paper/written_by/author, paper/cites/paper,
    author/affiliated_with/institution and institution/employs/author. Edge ``i`` of written_by is edge ``i`` of
    writes reversed, and so for employs. Papers have ``feat``, ``label`` and the masks, authors ``feat``.

    Args:
        num_papers: Number of papers.
        num_authors: Number of authors. Default: 3 for every 2 papers.
        num_institutions: Number of institutions. Default: 1 for every 80 papers.
        authorships: Authors drawn per paper; repeated pairs are dropped, here and below.
        citations: Citations drawn per paper; of itself are dropped. (Each author gets 1 affiliation on average.)
        num_classes: Number of fields of study, which are the papers' labels.
        homophily: Share of the edges that stay inside a field of study.
        exponent: Exponent of the power law of expected degrees, above 1; smaller is more skewed.
        num_features: Width of the papers' ``feat``, float32.
        num_author_features: Width of the authors' ``feat``, float32.
        feature_noise: Share of papers and authors with the features of a random field of study.
        fractions: Shares of train, val and test papers.
        seed: Any integer; counts modulo 2**64.
        progress: Called with the edges drawn so far and all of them; an edge and its reverse count once.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = citation(1000, seed=1)
        >>> [graph.num_nodes_of(name) for name in graph.node_types]
        [1000, 1500, 13]
    """
    authors = math.ceil(num_papers * 1.5) if num_authors is None else num_authors
    institutions = math.ceil(num_papers / 80) if num_institutions is None else num_institutions
    counts = dict(zip(_TYPES, (num_papers, authors, institutions), strict=True))
    _check(counts, authorships, citations, num_classes, num_features, num_author_features)
    check_model(num_classes, homophily, exponent, feature_noise)
    check_fractions(fractions)
    labels = {t: random_labels(n, num_classes, derive_key(seed, 0, i)) for i, (t, n) in enumerate(counts.items())}
    blocks = {
        t: Blocks.of(labels[t], power_weights(n, exponent, derive_key(seed, 1, i)), num_classes)
        for i, (t, n) in enumerate(counts.items())
    }
    drawn = {_WRITES: int(authorships * num_papers), _CITES: int(citations * num_papers), _WORKS: authors}
    csc = _structure(blocks, drawn, homophily, derive_key(seed, 2), progress)
    graph = Graph(csc, counts)
    for place, (name, width) in enumerate((("paper", num_features), ("author", num_author_features))):
        feat = noisy_features(labels[name], num_classes, width, feature_noise, derive_key(seed, 3, place))
        graph.set_field("feat", feat, node_type=name)
    masks = random_masks(num_papers, fractions, derive_key(seed, 4))
    for name, value in {"label": labels["paper"], **masks}.items():
        graph.set_field(name, value, node_type="paper")
    return graph


def _check(
    counts: dict[str, int],
    authorships: float,
    citations: float,
    num_classes: int,
    num_features: int,
    num_author_features: int,
) -> None:
    for name, count in counts.items():
        if not 1 <= count <= MAX_NODES:
            raise ValueError(f"num_{name}s must be in [1, {MAX_NODES}], got {count}")
    for name, value in (("authorships", authorships), ("citations", citations)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a number of at least 0, got {value}")
    if not 1 <= num_classes <= counts["paper"]:
        raise ValueError(f"num_classes must be in [1, num_papers={counts['paper']}], got {num_classes}")
    as_integer("num_features", num_features, least=1)
    as_integer("num_author_features", num_author_features, least=1)


def _structure(
    blocks: dict[str, Blocks],
    drawn: dict[EdgeType, int],
    homophily: float,
    key: int,
    progress: Callable[[int, int], None] | None,
) -> dict[EdgeType, CSC]:
    """Draw the CSC of every edge type; a reverse type has the edge ids of the type that it reverses."""
    result: dict[EdgeType, CSC] = {}
    before, total = 0, sum(drawn.values())
    for place, (edge_type, count) in enumerate(drawn.items()):
        source, target = blocks[edge_type[0]], blocks[edge_type[2]]
        tell = None if progress is None else partial(_tell, progress, before, total)
        before += count
        src, dst = draw_edges(source, target, homophily, count, derive_key(key, place), tell)
        if edge_type[0] == edge_type[2]:
            src, dst = src[src != dst], dst[src != dst]
        csc = csc_of_pairs(src, dst, len(source.order), len(target.order))
        result[edge_type] = csc
        if edge_type in _REVERSES:
            result[_REVERSES[edge_type]] = csc.transpose()
    return result


def _tell(progress: Callable[[int, int], None], before: int, total: int, done: int, _all: int) -> None:
    """Progress of one edge type as progress of the whole."""
    progress(before + done, total)
