"""In-edges between two vertex types, parallel edges and all, with edge ids as given."""

import numpy as np
import torch

from pagraph import CSC


def typed_csc(src, dst, num_src, num_dst):
    """A CSC whose edge ``i`` goes from ``src[i]`` to ``dst[i]``."""
    order = np.argsort(dst, kind="stable")
    indptr = np.concatenate(
        [[0], np.cumsum(np.bincount(np.asarray(dst, dtype=int), minlength=num_dst))]
    )
    indices = np.asarray(src, dtype=np.int32)[order]
    return CSC(
        torch.from_numpy(indptr.astype(np.int32)),
        torch.from_numpy(indices),
        num_src,
        torch.from_numpy(order),
    )
