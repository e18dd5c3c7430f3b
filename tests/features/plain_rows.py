"""Plain references for rows: torch's own indexing, of bytes, as torch cannot index every dtype."""

import torch

from pagraph.features.field import Read


def as_bytes(tensor):
    return (
        tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0).byte()
    )


def same(left, right):
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and torch.equal(as_bytes(left), as_bytes(right))
    )


def picked(tensor, ids):
    """The rows of these ids."""
    rows = as_bytes(tensor).view(len(tensor), tensor.nbytes // len(tensor))
    return rows[ids.long()].view(-1).view(tensor.dtype).view(len(ids), *tensor.shape[1:])


def is_current(fields, key, rows):
    """Whether rows that were read of a field are those of its values now."""
    return not fields.outdated([Read(key, torch.arange(len(rows.tensor)))], [rows])
