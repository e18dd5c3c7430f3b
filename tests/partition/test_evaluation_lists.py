"""Each validation and test vertex is evaluated by one part at most."""

import dataclasses

from plain_partition import make_partition, plain_hops

from pagraph import open_partition
from pagraph.datasets import sbm
from pagraph.partition import partition_graph, verify_partition, write_partition


class TestLists:
    def plain_nearest(self, partition, v):
        hops = [
            plain_hops(partition.graph, partition.seeds_of(i).tolist(), partition.hops)
            for i in range(3)
        ]
        found = [(hop_of[v], part) for part, hop_of in enumerate(hops) if v in hop_of]
        return [part for hop, part in found if hop == min(found)[0]]

    def test_each_vertex_is_evaluated_where_it_lies_nearest(self, whole, source, tmp_path):
        train = whole.ndata["train_mask"].nonzero().squeeze(1)[:9]
        partition = partition_graph(whole, 3, hops=1, method="hash", train=train)
        manifest = write_partition(partition, tmp_path / "out", source=source)
        for name in ("val", "test"):
            lists = [open_partition(tmp_path / "out", index) for index in range(3)]
            got = {
                int(part.global_ids[v]): part.index for part in lists for v in getattr(part, name)
            }
            assert len(got) == sum(len(getattr(part, name)) for part in lists)
            asked = whole.ndata[f"{name}_mask"].nonzero().squeeze(1).tolist()
            want = {v: self.plain_nearest(partition, v) for v in asked}
            assert all(part in want[v] for v, part in got.items())
            assert got.keys() == {v for v, parts in want.items() if parts}
            assert manifest.outside[name] == list(want.values()).count([]) > 0

    def test_parts_that_hold_the_same_evaluate_equally_many(self, tmp_path):
        graph = sbm(2000, seed=1)
        manifest = write_partition(
            partition_graph(graph, 4, hops=3, method="hash"), tmp_path / "out"
        )
        for counts in (manifest.val_per_part, manifest.test_per_part):
            assert sum(counts) == 400
            assert max(counts) < 1.4 * min(counts)

    def test_parts_that_evaluate_themselves(self, whole, source, tmp_path):
        divided = partition_graph(whole, 3, hops=1, method="hash")
        evaluated = (whole.ndata["val_mask"] | whole.ndata["test_mask"]).nonzero().squeeze(1)
        parts = (evaluated % 3).int()
        partition = make_partition(
            whole,
            divided.train.tolist(),
            divided.parts.tolist(),
            3,
            1,
            evaluated=evaluated,
            evaluation=parts,
        )
        manifest = write_partition(partition, tmp_path / "out", source=source)
        assert manifest.evaluation == "parts"
        assert manifest.outside == {"val": 0, "test": 0}
        for index in range(3):
            part = open_partition(tmp_path / "out", index)
            val = whole.ndata["val_mask"].nonzero().squeeze(1)
            assert part.global_ids[part.val].tolist() == val[val % 3 == index].tolist()
            assert max(part.val.max(), part.test.max(), part.train.max()) < part.hop_ends[0]
            assert len(part.train) + len(part.val) + len(part.test) == part.hop_ends[0]

    def test_of_those_that_parts_evaluate_no_part_lists_others(self, whole, source, tmp_path):
        """Validation vertices are divided, test vertices are not: a part may hold these, but not
        what they reach."""
        divided = partition_graph(whole, 3, hops=1, method="hash")
        evaluated = whole.ndata["val_mask"].nonzero().squeeze(1)
        partition = dataclasses.replace(
            divided, evaluated=evaluated, evaluation=(evaluated % 3).int()
        )
        manifest = write_partition(partition, tmp_path / "out", source=source)
        assert manifest.outside == {"val": 0, "test": int(whole.ndata["test_mask"].sum())}
        assert manifest.test_per_part == (0, 0, 0)
        assert verify_partition(tmp_path / "out").ok
