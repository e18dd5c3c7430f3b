"""Degree-corrected stochastic block model (Karrer and Newman, 2011) with labels and features to learn."""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Graph
from ..sampling.keys import derive_key
from .blocks import Blocks, check_model, draw_edges, noisy_features, power_weights
from .edges import drop_repeats, graph_of, mirror
from .fields import check_fractions, random_labels, random_masks

__all__ = ["sbm"]

_MAX_NODES = 2**31 - 1


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
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Generate an undirected graph (both directions stored) whose labels a GNN can learn and an MLP cannot.

    A vertex's features are its class centroid plus noise, but for a share ``feature_noise`` of the vertices
    the centroid of a random class: no model that sees the features alone can be right more often than
    ``1 - feature_noise + feature_noise / num_classes``. The neighbours tell the rest.

    Args:
        num_nodes: Number of vertices.
        num_edges: Undirected edges drawn; self-loops and repeated ones are dropped. Default: 10 per vertex.
        num_classes: Number of blocks, which are the labels.
        homophily: Share of the edges that stay inside a block.
        exponent: Of the power law that expected degrees follow; above 1, smaller is more skewed.
        num_features: Width of the field ``feat``, float32.
        feature_noise: Share of vertices with the features of a random class.
        fractions: Shares of train, val and test vertices.
        seed: Any integer; counts modulo 2**64.
        progress: Called with the edges drawn so far and all of them.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = sbm(1000, num_edges=5000, num_classes=4, seed=1)
        >>> graph.num_nodes, sorted(graph.ndata)
        (1000, ['feat', 'label', 'test_mask', 'train_mask', 'val_mask'])
    """
    count = 10 * num_nodes if num_edges is None else num_edges
    _check(num_nodes, count, num_classes, num_features)
    check_model(num_classes, homophily, exponent, feature_noise)
    check_fractions(fractions)
    labels = random_labels(num_nodes, num_classes, derive_key(seed, 0))
    blocks = Blocks.of(labels, power_weights(num_nodes, exponent, derive_key(seed, 1)), num_classes)
    src, dst = draw_edges(blocks, blocks, homophily, count, derive_key(seed, 2), progress)
    src, dst = drop_repeats(src, dst, num_nodes, undirected=True)
    src, dst, _ = mirror(src, dst)
    feat = noisy_features(labels, num_classes, num_features, feature_noise, derive_key(seed, 3))
    masks = random_masks(num_nodes, fractions, derive_key(seed, 4))
    graph = graph_of(src, dst, num_nodes)
    for name, value in {"feat": feat, "label": labels, **masks}.items():
        graph.set_field(name, value)
    return graph


def _check(num_nodes: int, num_edges: int, num_classes: int, num_features: int) -> None:
    if not 1 <= num_nodes <= _MAX_NODES:
        raise ValueError(f"num_nodes must be in [1, {_MAX_NODES}], got {num_nodes}")
    if num_edges < 0:
        raise ValueError(f"num_edges must be at least 0, got {num_edges}")
    if not 1 <= num_classes <= num_nodes:
        raise ValueError(f"num_classes must be in [1, num_nodes={num_nodes}], got {num_classes}")
    if num_features < 1:
        raise ValueError(f"num_features must be at least 1, got {num_features}")
