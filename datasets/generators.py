"""Generators of realistic graphs: checks of their arguments, and the drawing.

Drawing is imported on call, so that the command line reports wrong options without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..options.names import FEATURE_DTYPES
from ..system.checks import StrPath, as_integer, as_integers
from ..system.progress import Progress

if TYPE_CHECKING:
    from ..graph.graph import Graph

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
# A trillion vertices: a larger number is surely a count rather than a logarithm.
_MAX_SCALE = 40
# Blocks sort vertices as int32.
_MAX_NODES = 2**31 - 1


def rmat(
    scale: int,
    *,
    edge_factor: float = 16.0,
    num_edges: int | None = None,
    probabilities: tuple[float, float, float, float] = GRAPH500,
    noise: float = 0.0,
    undirected: bool = False,
    simple: bool = False,
    num_features: int = 0,
    num_classes: int = 0,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    feature_dtype: str = "float32",
    seed: int = 0,
    out: StrPath | None = None,
    memory: int | str | None = None,
    store: str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Generate an RMAT graph with ``2**scale`` vertices, a few of very high degree.

    Ids are scrambled. Equal arguments give the same graph on every machine, for any number of
    threads.

    Args:
        scale: Base-2 logarithm of the number of vertices, 0 to 40.
        edge_factor: Edges drawn per vertex.
        num_edges: Edges drawn; replaces ``edge_factor``.
        probabilities: Probabilities of the four quadrants a, b, c, d.
        noise: Maximal change of b and c, drawn once per level, which smooths the degree
            distribution (Seshadhri, Pinar and Kolda, J. ACM 2013).
        undirected: Store both directions of every edge.
        simple: Drop self-loops and repeated edges. Default: keep them, as Graph500 does.
        num_features: Width of a random normal field ``feat``; 0 for none.
        num_classes: Number of random labels in ``label``, with masks; 0 for none.
        fractions: Shares of train, val and test vertices.
        feature_dtype: Dtype of ``feat``: "float32", or "float16" or "bfloat16" (rounded).
        seed: Any integer, modulo 2**64.
        out: Write the graph to this new folder out of core, and return it opened.
        memory: Memory for writing ``out``, such as "4GiB", on top of Python and its libraries.
            Default: half of free memory.
        store: For ``out``: form of ``feat`` in fewer bytes, see :func:`write_graph`.
        origin: For ``out``: where the graph is from, for people.
        progress: Called with the work done so far and all work.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: An argument is out of its range.

    Example:
        >>> rmat(10, edge_factor=8, seed=1)
        Graph(num_nodes=1024, num_edges=8192, ids=int32)
    """
    scale, num_features, num_classes, seed = as_integers(
        scale=scale, num_features=num_features, num_classes=num_classes, seed=seed
    )
    count = _check_rmat(scale, edge_factor, num_edges, num_features, num_classes)
    check_fractions(fractions)
    if feature_dtype not in FEATURE_DTYPES:
        raise ValueError(
            f"feature_dtype must be one of {', '.join(FEATURE_DTYPES)}, got {feature_dtype!r}"
        )
    _check_quadrants(probabilities, noise)
    from .edge_sort import write_bounded
    from .edges import check_simple
    from .random_graphs import RmatEdges, rmat_fields

    edges = RmatEdges.of(scale, count, probabilities, noise, seed)
    fields = rmat_fields(2**scale, num_features, feature_dtype, num_classes, fractions, seed)
    if simple:
        check_simple(edges.num_nodes)
    if out is not None:
        return write_bounded(
            lambda files: edges.sorted_in(files, undirected=undirected, simple=simple),
            out,
            memory=memory,
            computed=fields,
            store=store,
            origin=origin,
            progress=progress,
        )
    graph = edges.in_memory(progress, undirected=undirected, simple=simple)
    for name, rows in fields.items():
        graph.set_field(name, rows[:])
    return graph


def _check_rmat(
    scale: int, edge_factor: float, num_edges: int | None, num_features: int, num_classes: int
) -> int:
    """Check the arguments; returns the number of edges to draw."""
    if not 0 <= scale <= _MAX_SCALE:
        raise ValueError(f"scale must be in [0, {_MAX_SCALE}], got {scale}")
    if num_edges is None and not (math.isfinite(edge_factor) and edge_factor >= 0):
        raise ValueError(f"edge_factor must be a number of at least 0, got {edge_factor}")
    for name, count in (
        ("num_edges", num_edges or 0),
        ("num_features", num_features),
        ("num_classes", num_classes),
    ):
        as_integer(name, count, least=0)
    return int(edge_factor * 2**scale) if num_edges is None else int(num_edges)


def _check_quadrants(probabilities: tuple[float, float, float, float], noise: float) -> None:
    a, b, c, d = probabilities
    if not all(math.isfinite(p) and p >= 0 for p in probabilities) or abs(a + b + c + d - 1) > 1e-6:
        raise ValueError(f"probabilities must be at least 0 and add up to 1, got {probabilities}")
    # Noise moves up to this much between a, d and b, c; no probability may become negative.
    limit = min((a + d) / 2, b, c)
    if not 0 <= noise <= limit:
        raise ValueError(f"noise must be in [0, {limit}] for these probabilities, got {noise}")


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Raise ValueError unless the shares are in [0, 1] and add up to at most 1."""
    if len(fractions) != 3 or not all(math.isfinite(f) and 0 <= f <= 1 for f in fractions):
        raise ValueError(f"fractions must be three numbers in [0, 1], got {fractions}")
    if sum(fractions) > 1 + 1e-9:
        raise ValueError(f"fractions must add up to at most 1, got {fractions}")


def sbm(
    num_nodes: int,
    *,
    num_edges: int | None = None,
    num_classes: int = 10,
    homophily: float = 0.55,
    exponent: float = 2.5,
    num_features: int = 64,
    feature_noise: float = 0.45,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    progress: Progress | None = None,
) -> Graph:
    """Generate a block model whose labels a GNN can learn and an MLP cannot.

    It is undirected, with both directions stored. A vertex's features are its class centroid plus
    noise. A share ``feature_noise`` of the vertices gets the centroid of a random class instead. So
    the accuracy from features alone is at most ``1 - feature_noise + feature_noise / num_classes``.
    The rest can be learned from the neighbours.

    Args:
        num_nodes: Number of vertices.
        num_edges: Undirected edges drawn; self-loops and repeats are dropped. Default: 10 per
            vertex.
        num_classes: Number of blocks, which are the labels.
        homophily: Share of the edges that stay inside a block.
        exponent: Exponent of the power law of expected degrees, above 1; smaller is more skewed.
        num_features: Width of the field ``feat``, float32.
        feature_noise: Share of vertices with the features of a random class.
        fractions: Shares of train, val and test vertices.
        seed: Any integer, modulo 2**64.
        progress: Called with the edges drawn so far and all edges.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = sbm(1000, num_edges=5000, num_classes=4, seed=1)
        >>> graph.num_nodes, sorted(graph.ndata)
        (1000, ['feat', 'label', 'test_mask', 'train_mask', 'val_mask'])
    """
    num_nodes, num_classes, num_features, seed = as_integers(
        num_nodes=num_nodes, num_classes=num_classes, num_features=num_features, seed=seed
    )
    count = 10 * num_nodes if num_edges is None else as_integer("num_edges", num_edges)
    _check_sbm(num_nodes, count, num_classes, num_features)
    _check_model(num_classes, homophily, exponent, feature_noise)
    check_fractions(fractions)
    from ..seeds.keys import derive_key
    from .edges import drop_repeats, graph_of, mirror
    from .random_fields import label_rows, mask_rows
    from .random_graphs import Blocks, draw_edges, noisy_features, power_weights

    labels = label_rows(num_nodes, num_classes, derive_key(seed, 0))[:]
    blocks = Blocks.of(labels, power_weights(num_nodes, exponent, derive_key(seed, 1)), num_classes)
    src, dst = draw_edges(blocks, blocks, homophily, count, derive_key(seed, 2), progress)
    src, dst = drop_repeats(src, dst, num_nodes, undirected=True)
    src, dst, _ = mirror(src, dst)
    graph = graph_of(src, dst, num_nodes)
    feat = noisy_features(labels, num_classes, num_features, feature_noise, derive_key(seed, 3))
    graph.set_field("feat", feat)
    graph.set_field("label", labels)
    for name, rows in mask_rows(num_nodes, fractions, derive_key(seed, 4)).items():
        graph.set_field(name, rows[:])
    return graph


def _check_sbm(num_nodes: int, num_edges: int, num_classes: int, num_features: int) -> None:
    if not 1 <= num_nodes <= _MAX_NODES:
        raise ValueError(f"num_nodes must be in [1, {_MAX_NODES}], got {num_nodes}")
    as_integer("num_edges", num_edges, least=0)
    if not 1 <= num_classes <= num_nodes:
        raise ValueError(f"num_classes must be in [1, num_nodes={num_nodes}], got {num_classes}")
    as_integer("num_features", num_features, least=1)


def _check_model(num_classes: int, homophily: float, exponent: float, feature_noise: float) -> None:
    if not 0 <= homophily <= 1:
        raise ValueError(f"homophily must be in [0, 1], got {homophily}")
    if num_classes == 1 and homophily != 1:
        raise ValueError(f"homophily must be 1 with a single class, got {homophily}")
    if not (math.isfinite(exponent) and exponent > 1):
        raise ValueError(f"exponent must be above 1, got {exponent}")
    if not 0 <= feature_noise <= 1:
        raise ValueError(f"feature_noise must be in [0, 1], got {feature_noise}")


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
    progress: Progress | None = None,
) -> Graph:
    """Generate a citation heterograph whose labels a relational GNN can learn and an MLP cannot.

    Every paper, author and institution has a field of study. The edges of each type are those of a
    block model between fields. See :func:`~pagraph.datasets.sbm` for the model, the features of
    papers and authors (institutions have none), and the best accuracy from features alone.

    The edge types are author/writes/paper, paper/written_by/author, paper/cites/paper,
    author/affiliated_with/institution and institution/employs/author. Edge ``i`` of written_by is
    the reverse of edge ``i`` of writes; the same holds for employs. Papers have ``feat``, ``label``
    and masks, authors ``feat``.

    Args:
        num_papers: Number of papers.
        num_authors: Number of authors. Default: 3 for every 2 papers.
        num_institutions: Number of institutions. Default: 1 for every 80 papers.
        authorships: Authors drawn per paper; repeated pairs are dropped, here and below.
        citations: Citations drawn per paper; self-citations are dropped. (Each author gets 1
            affiliation on average.)
        num_classes: Number of fields of study, which are the papers' labels.
        homophily: Share of the edges that stay inside a field of study.
        exponent: Exponent of the power law of expected degrees, above 1; smaller is more skewed.
        num_features: Width of the papers' ``feat``, float32.
        num_author_features: Width of the authors' ``feat``, float32.
        feature_noise: Share of papers and authors with the features of a random field of study.
        fractions: Shares of train, val and test papers.
        seed: Any integer, modulo 2**64.
        progress: Called with the edges drawn so far and all edges; an edge and its reverse count
            once.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = citation(1000, seed=1)
        >>> [graph.num_nodes_of(name) for name in graph.node_types]
        [1000, 1500, 13]
    """
    num_papers, num_classes, num_features, seed = as_integers(
        num_papers=num_papers, num_classes=num_classes, num_features=num_features, seed=seed
    )
    authors, institutions, num_author_features = as_integers(
        num_authors=math.ceil(num_papers * 1.5) if num_authors is None else num_authors,
        num_institutions=math.ceil(num_papers / 80)
        if num_institutions is None
        else num_institutions,
        num_author_features=num_author_features,
    )
    counts = {"paper": num_papers, "author": authors, "institution": institutions}
    _check_citation(counts, authorships, citations, num_classes, num_features, num_author_features)
    _check_model(num_classes, homophily, exponent, feature_noise)
    check_fractions(fractions)
    from ..graph.graph import Graph
    from ..seeds.keys import derive_key
    from .random_fields import label_rows, mask_rows
    from .random_graphs import Blocks, citation_edges, noisy_features, power_weights

    labels = {}
    blocks = {}
    for place, (ntype, count) in enumerate(counts.items()):
        labels[ntype] = label_rows(count, num_classes, derive_key(seed, 0, place))[:]
        weights = power_weights(count, exponent, derive_key(seed, 1, place))
        blocks[ntype] = Blocks.of(labels[ntype], weights, num_classes)
    drawn = (int(authorships * num_papers), int(citations * num_papers), authors)
    graph = Graph(citation_edges(blocks, drawn, homophily, derive_key(seed, 2), progress), counts)
    widths = {"paper": num_features, "author": num_author_features}
    for place, (ntype, width) in enumerate(widths.items()):
        key = derive_key(seed, 3, place)
        feat = noisy_features(labels[ntype], num_classes, width, feature_noise, key)
        graph.set_field("feat", feat, node_type=ntype)
    graph.set_field("label", labels["paper"], node_type="paper")
    for name, rows in mask_rows(num_papers, fractions, derive_key(seed, 4)).items():
        graph.set_field(name, rows[:], node_type="paper")
    return graph


def _check_citation(
    counts: dict[str, int],
    authorships: float,
    citations: float,
    num_classes: int,
    num_features: int,
    num_author_features: int,
) -> None:
    for name, count in counts.items():
        if not 1 <= count <= _MAX_NODES:
            raise ValueError(f"num_{name}s must be in [1, {_MAX_NODES}], got {count}")
    for name, value in (("authorships", authorships), ("citations", citations)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a number of at least 0, got {value}")
    if not 1 <= num_classes <= counts["paper"]:
        raise ValueError(
            f"num_classes must be in [1, num_papers={counts['paper']}], got {num_classes}"
        )
    as_integer("num_features", num_features, least=1)
    as_integer("num_author_features", num_author_features, least=1)


def shop(
    num_customers: int,
    *,
    num_products: int | None = None,
    num_periods: int = 8,
    persistence: float = 0.85,
    num_features: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> Graph:
    """Generate a shop's database as a temporal heterograph.

    Each table is a vertex type, and each foreign key an edge type in both directions. Every product
    is of one of two kinds, visible in its features. In each period of 30 days a customer buys only
    one kind. In the next period it is the same with probability ``persistence``, else the other.
    The task, as in RelBench (Robinson et al., 2024), is to predict at the end of a period the kind
    of the next one.

    The last period's purchases, two hops from the customer, reveal its kind. So without later
    information the accuracy is at most ``persistence``, and a model reaches it if it can tell the
    last period from earlier ones. A higher accuracy means a leak from the future.

    ======== =====================================================================================
    table    fields (``time`` in seconds, int64; ``feat`` float32, noise but for products)
    ======== =====================================================================================
    customer ``feat``, ``time`` of the first day
    product  ``feat``; no time
    purchase ``feat``, ``time``
    task     ``time``, ``label`` and masks: the last period is for testing, the one before for
    validation
    ======== =====================================================================================

    The edge types are customer/made/purchase, purchase/made_by/customer, product/sold_in/purchase,
    purchase/of/product, and customer/asked/task, without reverse: a question holds no information.
    Edge ``i`` is the foreign key of row ``i``.

    Args:
        num_customers: Number of customers.
        num_products: Number of products. Default: 1 for every 10 customers, at least 2.
        num_periods: Number of periods, at least 4.
        persistence: Probability that a customer likes the same kind again, in [0.5, 1].
        num_features: Width of the fields ``feat``, float32.
        seed: Any integer, modulo 2**64.
        progress: Called with the tables made so far and all tables.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = shop(100, seed=1)
        >>> graph.node_types
        ['customer', 'product', 'purchase', 'task']
        >>> sorted(graph.node_fields("task"))
        ['label', 'test_mask', 'time', 'train_mask', 'val_mask']
    """
    num_customers = as_integer("num_customers", num_customers, least=1)
    seed = as_integers(seed=seed)[0]
    count = max(2, math.ceil(num_customers / 10)) if num_products is None else num_products
    num_products = as_integer("num_products", count, least=2)
    num_periods = as_integer("num_periods", num_periods, least=4)
    num_features = as_integer("num_features", num_features, least=1)
    if not 0.5 <= persistence <= 1:
        raise ValueError(f"persistence must be in [0.5, 1], got {persistence}")
    from .random_graphs import draw_shop

    return draw_shop(
        num_customers,
        num_products,
        num_periods,
        persistence=persistence,
        num_features=num_features,
        seed=seed,
        progress=progress,
    )
