"""A small graph on which a GNN learns within seconds, made without the package's own generators."""

import torch

from pagraph.graph import Graph

CLASSES = 4


def community_graph(num_nodes: int = 600, degree: int = 12, seed: int = 0) -> Graph:
    """Four communities; the features of 40 % of the vertices say the wrong class, most neighbours
    the right one."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_nodes) % CLASSES
    src = torch.arange(num_nodes).repeat_interleave(degree)
    inside = torch.rand(len(src), generator=g) < 0.85
    shift = torch.randint(0, num_nodes // CLASSES, (len(src),), generator=g) * CLASSES
    anywhere = torch.randint(0, num_nodes, (len(src),), generator=g)
    dst = torch.where(inside, (labels[src] + shift) % num_nodes, anywhere)
    wrong = torch.rand(num_nodes, generator=g) < 0.4
    shown = torch.where(wrong, torch.randint(0, CLASSES, (num_nodes,), generator=g), labels)
    noise = torch.randn(num_nodes, 8, generator=g)
    features = (
        torch.nn.functional.pad(torch.nn.functional.one_hot(shown, CLASSES), (0, 4)) * 2.0 + noise
    )
    part = torch.randint(0, 5, (num_nodes,), generator=g)
    masks = {"train_mask": part < 3, "val_mask": part == 3, "test_mask": part == 4}
    return Graph.from_coo(
        torch.cat([src, dst]),
        torch.cat([dst, src]),
        num_nodes,
        ndata={"feat": features, "label": labels, **masks},
    )
