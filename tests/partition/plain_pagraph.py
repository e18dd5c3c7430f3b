"""What PaGraph's partitioners put into a part, worked out with sets, vertices without edges
included."""

import numpy as np
import scipy.sparse
from plain_partition import in_edges, plain_hops


def plain_pagraph_part(graph, train, hops):
    """(CSR, ids of the part's vertices, local ids of training vertices) as PaGraph computes them.

    The vertices are those with edges within the hops. A training vertex that is not among them
    becomes local vertex 0, or, if its id is above all of theirs, the training vertex with the
    lowest id.
    """
    rows, hop_of = in_edges(graph), plain_hops(graph, train, hops)
    pairs = sorted({(u, v) for v, hop in hop_of.items() if hop < hops for u, _ in rows[v]})
    ids = sorted({v for pair in pairs for v in pair})
    local = {v: i for i, v in enumerate(ids)}
    ends = [local[u] for u, _ in pairs], [local[v] for _, v in pairs]
    ones = np.ones(len(pairs), dtype=np.uint8)
    adjacency = scipy.sparse.coo_matrix((ones, ends), shape=(len(ids), len(ids))).tocsr()
    moved = sorted({v if v <= ids[-1] else min(train) for v in train})
    return (
        adjacency,
        np.array(ids, dtype=np.int64),
        np.array([local.get(v, 0) for v in moved], dtype=np.int64),
    )


def write_plain_pagraph(folder, graph, trains, hops):
    """The four files of every part."""
    folder.mkdir()
    labels = graph.ndata["label"].numpy()
    for part, train in enumerate(trains):
        adjacency, ids, local_train = plain_pagraph_part(graph, train, hops)
        scipy.sparse.save_npz(folder / f"subadj_{part}.npz", adjacency)
        np.save(folder / f"sub_trainid_{part}.npy", local_train)
        np.save(folder / f"sub_train2fullid_{part}.npy", ids)
        np.save(folder / f"sub_label_{part}.npy", labels[ids[local_train]])
