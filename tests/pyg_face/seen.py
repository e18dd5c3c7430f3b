"""What batches must hold, homogeneous and not, seen as batches over types."""

from dataclasses import dataclass

import torch
from torch_geometric.data import Data


def assert_same(ours, theirs):
    """Two batches hold the same under the same names, bit for bit."""
    compare(ours.to_dict(), theirs.to_dict(), "batch")


def compare(ours, theirs, name):
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), name
        for key, value in theirs.items():
            compare(ours[key], value, f"{name}.{key}")
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (name, ours, theirs)
    else:
        assert ours == theirs, (name, ours, theirs)


@dataclass
class Seen:
    """A batch, and the data it is from, by type; a homogeneous one has the type ''."""

    n_id: dict
    found: dict
    edges: dict  # edge type to (edge_index, e_id, num_sampled_edges)
    given: dict  # edge type to the data's edge_index
    seeds: dict  # vertex type to how many
    trees: dict

    @staticmethod
    def of(batch, data):
        if isinstance(data, Data):
            edge_index = (
                batch.edge_index
                if "edge_index" in batch
                else torch.empty((2, 0), dtype=torch.int64)
            )
            given = data.edge_index if "edge_index" in data else edge_index
            return Seen(
                {"": batch.n_id},
                {"": batch.get("num_sampled_nodes")},
                {("", ""): (edge_index, batch.e_id, batch.get("num_sampled_edges"))},
                {("", ""): given},
                {"": batch.batch_size},
                {"": batch.get("batch")},
            )
        return Seen(
            {t: batch[t].n_id for t in data.node_types},
            {t: batch[t].get("num_sampled_nodes") for t in data.node_types},
            {
                e: (batch[e].edge_index, batch[e].e_id, batch[e].get("num_sampled_edges"))
                for e in data.edge_types
            },
            {e: data[e].edge_index for e in data.edge_types},
            {t: batch[t].get("batch_size", 0) for t in data.node_types},
            {t: batch[t].get("batch") for t in data.node_types},
        )

    def check(self, fanouts, *, replace=False):
        """All that is true of a directional batch that is not disjoint; ``fanouts`` by edge
        type."""
        for t, n_id in self.n_id.items():
            self.check_vertices(t, n_id)
        for etype, (edge_index, e_id, drawn) in self.edges.items():
            src, dst = edge_index
            ends = self.n_id[etype[0]][src], self.n_id[etype[-1]][dst]
            assert torch.equal(torch.stack(ends).long(), self.given[etype][:, e_id].long())
            assert (dst.diff() >= 0).all()
            assert sum(drawn) == len(e_id) and len(drawn) == len(fanouts[etype])
            pairs = set(zip(dst.tolist(), e_id.tolist(), strict=True))
            assert replace or len(pairs) == len(e_id)
            self.check_copies(etype[0], src)
            self.check_degrees(etype, dst, drawn, fanouts[etype], replace)

    def check_vertices(self, t, n_id):
        """Seeds first, nothing twice beyond them, and counts that add up."""
        seeds, found = n_id[: self.seeds[t]].tolist(), n_id[self.seeds[t] :].tolist()
        assert len(set(found)) == len(found) and not set(found) & set(seeds)
        assert sum(self.found[t]) == len(n_id) and self.found[t][0] == self.seeds[t]

    def check_copies(self, t, src):
        """Edges lead to the first copy of a repeated seed."""
        first = {}
        for place, v in enumerate(self.n_id[t].tolist()):
            first.setdefault(v, place)
        assert all(first[int(self.n_id[t][place])] == place for place in src.tolist())

    def check_degrees(self, etype, dst, drawn, fanouts, replace):
        """As many edges as the fan-out says for all that a hop found, in the next; none for what
        the last one found."""
        n_id, found = self.n_id[etype[-1]], self.found[etype[-1]]
        degrees = torch.bincount(self.given[etype][1])
        got = torch.bincount(dst, minlength=len(n_id)).tolist()
        begin = 0
        for hop, count in enumerate(found):
            places = range(begin, begin + count)
            begin += count
            if hop == len(fanouts):
                assert not any(got[place] for place in places)
                continue
            k = fanouts[hop]
            for place in places:
                v = int(n_id[place])
                degree = int(degrees[v]) if v < len(degrees) else 0
                assert got[place] == (
                    degree if k < 0 else k * (degree > 0) if replace else min(k, degree)
                )
            assert sum(got[place] for place in places) == drawn[hop]
