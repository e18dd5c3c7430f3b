"""Compares the fields of a part with the rows of the whole graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...graph import Graph
from ..parts.manifest import SPLITS
from ..parts.part import Part
from ..parts.part_writing import OWN_FIELDS
from ..parts.selection import SelectedRows
from .findings import Finding

__all__ = ["check_fields"]

_BYTES_AT_ONCE = 16 * 2**20


def check_fields(part: Part, whole: Graph) -> Iterator[Finding]:
    """Every field that is not referred to has the source's rows, bit for bit; masks and degrees are what they must be.

    The part's vertices and edges have been checked.
    """
    ids, csc = part.global_ids, whole.csc
    lists = {"train": part.train, "val": part.val, "test": part.test}
    want: dict[str, Tensor | SelectedRows] = {
        "in_degrees": (csc.indptr[ids + 1] - csc.indptr[ids]).long(),
        "out_degrees": csc.source_counts[ids],
    }
    if csc.loop_counts.any():
        want["self_loops"] = csc.loop_counts[ids].long()
    for name in SPLITS:
        if name == "train" or f"{name}_mask" in whole.ndata:
            want[f"{name}_mask"] = torch.zeros(len(ids), dtype=torch.bool).index_fill_(0, lists[name], True)
    referenced = {} if part.manifest.source is None else part.manifest.source.fields
    for name, value in whole.ndata.items():
        if name not in want and name not in referenced:
            want[name] = SelectedRows(value, ids)
    yield from _compare_all(part, "vertices", want, part.graph.ndata, OWN_FIELDS)
    edges = {name: SelectedRows(value, part.global_edge_ids) for name, value in whole.edata.items()}
    yield from _compare_all(part, "edges", edges, part.graph.edata, ("global_ids",))


def _compare_all(
    part: Part,
    owner: str,
    want: Mapping[str, Tensor | SelectedRows],
    got: Mapping[str, Tensor],
    own: tuple[str, ...],
) -> Iterator[Finding]:
    for name in want.keys() - got.keys():
        yield Finding("fields", part.index, f"field {name!r} of its {owner} must be there as in the source, got none")
    for name in got.keys() - want.keys() - set(own):
        yield Finding("fields", part.index, f"field {name!r} of its {owner} must not be there, the source has none")
    for name in want.keys() & got.keys():
        message = _difference(want[name], got[name])
        if message is not None:
            yield Finding("fields", part.index, f"field {name!r} of its {owner} {message}")


def _difference(want: Tensor | SelectedRows, got: Tensor) -> str | None:
    if (want.dtype, tuple(want.shape)) != (got.dtype, tuple(got.shape)):
        return f"must be {want.dtype} of shape {list(want.shape)}, got {got.dtype} of shape {list(got.shape)}"
    rows = got.shape[0]
    step = max(1, _BYTES_AT_ONCE // max(1, got[:1].numel() * got.element_size()))
    for begin in range(0, rows, step):
        some = slice(begin, min(begin + step, rows))
        different = (_bits(want[some]) != _bits(got[some])).any(1)
        if different.any():
            row = begin + int(different.nonzero()[0])
            return f"must have the source's rows, row {row} differs"
    return None


def _bits(rows: Tensor) -> Tensor:
    """Bytes of each row: NaN equals itself."""
    return rows.contiguous().reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)
