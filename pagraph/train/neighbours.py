"""Neighbours: what a layer adds up over all in-neighbours, straight from a graph's arrays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from ..csc import CSC

__all__ = ["Neighbours"]

_CHUNK = 4096  # vertices that a thread takes at once


class Neighbours:
    """Adds up rows over in-neighbours, as GraphSAGE (mean) or GCN does; nothing of the graph is copied.

    Args:
        csc: The in-edges; perhaps mapped.
        norm: For GCN, see :func:`pagraph.train.task.gcn_norm`: every vertex then has one self-loop, whatever the
            graph's own, and edges that are missing (of a part that dropped some) are made up for by those that are
            there. None: the mean.
    """

    def __init__(self, csc: CSC, norm: Tensor | None = None) -> None:
        csc.validate()
        self._csc, self._norm = csc, norm

    def scale(self, rows: Tensor, share: slice) -> None:
        """Make of the rows of some vertices, in place, what they send."""
        if self._norm is not None:
            rows[share].mul_(self._norm[share, :1])

    def add(self, sent: Tensor, share: slice, out: Tensor) -> None:
        """Add to ``out``, a row for each vertex of ``share``, what these receive.

        Args:
            sent: What every vertex sends, from the first on; float32.
            share: The vertices that receive.
            out: Shape ``(number of vertices, width of sent)``, float32.
        """
        begins = range(share.start, share.stop, _CHUNK)
        chunks = [out[begin - share.start :][:_CHUNK] for begin in begins]
        if len(chunks) <= 1:
            for begin, chunk in zip(begins, chunks, strict=True):
                self._add(sent, begin, chunk)
            return
        with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="pagraph-evaluate") as pool:
            for _ in pool.map(partial(self._add, sent), begins, chunks):
                pass  # what failed in a thread is raised here

    def _add(self, sent: Tensor, begin: int, out: Tensor) -> None:
        from .. import _preaggregation

        end = begin + len(out)
        indptr = self._csc.indptr[begin : end + 1].long()  # perhaps the graph's own memory
        ids = self._csc.indices[int(indptr[0]) : int(indptr[-1])]
        counts, weights, offsets = indptr.diff(), torch.ones(len(ids)), indptr - indptr[0]
        if self._norm is None:
            sums, to = torch.zeros_like(out), counts.clamp(min=1).float().reciprocal()
        else:
            targets = torch.repeat_interleave(torch.arange(len(out)), counts)
            loops = ids == targets + begin
            weights[loops] = 0.0
            counts = counts + 1 - torch.bincount(targets[loops], minlength=len(out))
            sums, to = sent[begin:end].clone(), self._norm[begin:end, 1] / counts
        _preaggregation.add_rows(offsets.numpy(), ids.numpy(), weights.numpy(), sent.numpy(), sums.numpy())
        out.add_(sums.mul_(to[:, None]))
