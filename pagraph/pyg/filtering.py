"""Batches of PyG's node and link loaders, from a sampler's output and rows that were read ahead.

Equal to those of ``NodeLoader.filter_fn`` and ``LinkLoader.filter_fn`` (PyG 2.6 to 2.8). These copy
the data again and query the stores about each attribute, which took 0.5 of the 2.4 ms of a batch
with five vertex types and eight edge types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .frames import Gathered, is_frame
from .package import import_pyg

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.loader.utils import filter_edge_store_, index_select  # noqa: E402
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput  # noqa: E402
from torch_geometric.utils import select  # noqa: E402

if TYPE_CHECKING:
    from .joining import Name, Reading


def node_batch(view: Any, output: Any, reading: Reading, rows: Mapping[Name, Tensor]) -> Any:
    """The batch that ``NodeLoader.filter_fn`` makes.

    Args:
        view: The loader's attributes that PyG's function reads.
        output: The sampler's output.
        reading: What was read for it; its ``data`` becomes the batch.
        rows: Rows of the attributes that were read. All others are selected here.
    """
    if not _is_of(reading.data, output):
        return _pyg.NodeLoader.filter_fn(view, output)
    batch = _Batch(view, output, reading, rows)
    if getattr(output, "orig_row", None) is not None and output.orig_col is not None:
        batch.put_ends_before(output.orig_row, output.orig_col)
    input_id, seed_time, *_ = output.metadata
    more = {"input_id": input_id, "seed_time": seed_time, "batch_size": input_id.size(0)}
    batch.put(batch.input_type, more)
    return batch.data


def link_batch(view: Any, output: Any, reading: Reading, rows: Mapping[Name, Tensor]) -> Any:
    """The batch that ``LinkLoader.filter_fn`` makes; see :func:`node_batch`."""
    if not _is_of(reading.data, output):
        return _pyg.LinkLoader.filter_fn(view, output)
    batch = _Batch(view, output, reading, rows)
    links = batch.input_type
    if view.neg_sampling is None or view.neg_sampling.is_binary():
        names = ("input_id", "edge_label_index", "edge_label", "edge_label_time")
        batch.put(links, dict(zip(names, output.metadata, strict=False)))
        return batch.data
    input_id, src_index, dst_pos_index, dst_neg_index, seed_time, *_ = output.metadata
    batch.put(links, {"input_id": input_id})
    if links in reading.stores:
        # Drop the data's own, which are of all links.
        batch.put(links, {"edge_label_index": None, "edge_label_time": None})
    sources = None if links is None else links[0]
    targets = None if links is None else links[-1]
    batch.put(sources, {"src_index": src_index, "seed_time": seed_time})
    batch.put(targets, {"dst_pos_index": dst_pos_index, "dst_neg_index": dst_neg_index})
    batch.put(targets, {"seed_time": seed_time})
    return batch.data


def rows_of(rows: Mapping[Name, Tensor], name: str, value: Any, index: Tensor, dim: int = 0) -> Any:
    """Rows of a ``Data``'s attribute: those that were read, else PyG's selection."""
    known = rows.get((None, name))
    # With as many vertices as edges, they may have been read for the other.
    if known is not None and dim == 0 and len(known) == len(index):
        return known
    if isinstance(value, Tensor):
        index = index.to(value.device)
    return select(value, index, dim=dim)


def _is_of(data: Any, output: Any) -> bool:
    """Whether output and data are both homogeneous, or both heterogeneous."""
    if isinstance(data, Data):
        return isinstance(output, SamplerOutput)
    return isinstance(data, HeteroData) and isinstance(output, HeteroSamplerOutput)


class _Batch:
    """A copy of the data that becomes a batch, as far as both loaders do the same."""

    def __init__(
        self, view: Any, output: Any, reading: Reading, rows: Mapping[Name, Tensor]
    ) -> None:
        self.data = reading.data
        self._stores = dict(reading.stores)
        self._is_hetero = isinstance(self.data, HeteroData)
        self.input_type = view.input_data.input_type if self._is_hetero else None
        self._permutations = view.sampler.edge_permutation
        # The sampler's results by key of their store.
        parts: dict[str, dict[Any, Any]] = {}
        for name in _PARTS:
            value = getattr(output, name)
            if value is None:
                parts[name] = {}
            else:
                parts[name] = value if self._is_hetero else {None: value}
        nodes = parts["node"]
        edges = parts["edge"]
        if self._is_hetero:
            # Types that no hop has reached are empty, as in PyG.
            nodes = _with_all(self.data.node_types, nodes)
            if output.edge is not None:
                edges = _with_all(self.data.edge_types, edges)
            for key in [*nodes, *edges]:
                if key not in self._stores:
                    self._stores[key] = self.data[key]  # PyG makes it
        for (key, name), tensor in rows.items():
            self._stores[key]._mapping[name] = tensor
        self._select_others(reading, nodes, edges)
        for key, node in nodes.items():
            mapping = self._stores[key]._mapping
            if "num_nodes" in mapping:
                mapping["num_nodes"] = node.numel()
        self._put_edges(parts["row"], parts["col"], edges)
        self._put_ids(nodes, edges)
        for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
            if not self._is_hetero and not parts[name]:
                self._stores[None]._mapping.pop(name, None)
            for key, value in parts[name].items():
                if value is None or key not in self._stores:
                    self.put(key, {name: value})
                else:
                    self._stores[key]._mapping[name] = value

    def put(self, key: Any, values: Mapping[str, Any]) -> None:
        """Set attributes that are not properties of PyG's classes; None deletes one."""
        store = self._stores.get(key)
        if store is None:
            store = self.data[key]
        mapping = store._mapping
        for name, value in values.items():
            if value is None:
                mapping.pop(name, None)
            else:
                mapping[name] = value

    def put_ends_before(self, row: Any, col: Any) -> None:
        """Keep the original ends of edges that were replaced."""
        if not self._is_hetero:
            self.data._orig_edge_index = torch.stack([row, col])
            return
        for key in row:
            self.data[key]._orig_edge_index = torch.stack([row[key], col[key]])

    def _select_others(
        self, reading: Reading, nodes: Mapping[Any, Tensor], edges: Mapping[Any, Tensor]
    ) -> None:
        """Select all that was not read ahead: edge attributes, frames, and other tensors."""
        for key, name in reading.versions:
            store = self._stores[key]
            value = store._mapping[name]
            by_edge = reading.levels is not None and (key, name) in reading.levels.by_edge
            index = edges.get(key) if by_edge else nodes[key]
            if by_edge and index is not None and self._permutations is not None:
                index = self._permuted(key, index, value)
            if index is None:
                self.put(key, {name: None})
                continue
            dim = self.data.__cat_dim__(name, value, store)
            # The parts of a frame that were not read are on the CPU.
            if isinstance(value, Gathered) and dim == 0:
                # As PyG's function has it, without the call.
                store._mapping[name] = value[index.cpu()]
            else:
                index = _beside(index, value)
                store._mapping[name] = index_select(value, index, dim=dim)

    def _permuted(self, key: Any, edge: Tensor, value: Any = None) -> Tensor:
        """Edge ids in the numbering of the user's data."""
        order = self._permutations
        if order is not None and self._is_hetero:
            order = order.get(key)
        if order is None:
            return edge
        positions = _beside(edge, value).to(torch.int64)
        return _beside(order, value)[positions]

    def _put_edges(
        self, rows: dict[Any, Tensor], cols: dict[Any, Tensor], edges: Mapping[Any, Tensor]
    ) -> None:
        types = self.data.edge_types if self._is_hetero else (None,)
        if self._is_hetero:
            rows = _with_all(types, rows)
            cols = _with_all(types, cols)
        for key in types:
            store = self._stores[key]
            mapping = store._mapping
            ends = rows[key], cols[key]
            whole = mapping.get("edge_index")
            if whole is not None:
                joined = stacked(*ends)
                # Edges that a device sampled stay there.
                if joined.is_cpu and not whole.is_cpu:
                    joined = joined.to(whole.device)
                mapping["edge_index"] = joined
            if "adj_t" in mapping:
                # By PyG, from a store that has only `adj_t`.
                alone = object.__new__(type(store))
                vars(alone).update(vars(store), _mapping={"adj_t": mapping["adj_t"]})
                filter_edge_store_(alone, store, *ends, edges.get(key))

    def _put_ids(self, nodes: Mapping[Any, Tensor], edges: Mapping[Any, Tensor]) -> None:
        # Without `put`: its calls for each type were a third of all our calls.
        for key, node in nodes.items():
            self._stores[key]._mapping.setdefault("n_id", node)
        for key, edge in edges.items():
            mapping = self._stores[key]._mapping
            if edge is None or "e_id" in mapping:
                continue
            if edge.dtype != torch.int64:
                edge = edge.to(torch.int64)
            mapping["e_id"] = edge if self._permutations is None else self._permuted(key, edge)


_PARTS = ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges")


def _with_all(types: Iterable[Any], known: dict[Any, Any]) -> dict[Any, Any]:
    """The known ids of each type, empty where there are none; other keys follow."""
    # Like `|` of two dictionaries, without an empty tensor for each known type.
    whole = {}
    for key in types:
        tensor = known.get(key)
        whole[key] = torch.empty(0, dtype=torch.int64, device="cpu") if tensor is None else tensor
    return whole | known


def _beside(index: Tensor, value: Any) -> Tensor:
    """The index on the device of the attribute that it selects from."""
    if isinstance(value, Tensor) or is_frame(value):
        return index.to(value.device)
    return index.cpu() if isinstance(value, np.ndarray) else index


def stacked(row: Tensor, col: Tensor) -> Tensor:
    """Both ends of edges as one tensor, without a copy if they are already its rows.

    For 170,000 edges, the copy into fresh memory took 1.0 of a batch's 6.5 ms.
    """
    begin = row.storage_offset()
    count = row.numel()
    are_rows = (
        type(row) is type(col) is Tensor
        and count > 0
        and count == col.numel()
        and row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
        and col.storage_offset() == begin + count
        # Equal offsets may be in two storages.
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    )
    return row.as_strided((2, count), (count, 1), begin) if are_rows else torch.stack([row, col])
