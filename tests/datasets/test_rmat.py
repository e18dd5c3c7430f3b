"""RMAT: known graphs for known seeds, Graph500's skew, and each option's effect."""

import hashlib

import numpy as np
import pytest
import torch

from pagraph.datasets import random_fields, rmat
from pagraph.datasets.random_graphs import _bounds
from pagraph.datasets.summary import edge_shares


def digest(graph):
    parts = [
        graph.csc.indptr,
        graph.csc.indices,
        *(value for _, value in sorted(graph.ndata.items())),
    ]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]


class TestDeterminism:
    @pytest.mark.parametrize(
        ("options", "want"),
        [
            ({}, "513b03f603b7b66e"),
            ({"seed": 1}, "8c70ea0fa46813a7"),
            ({"undirected": True, "simple": True}, "5401601c30c21dd0"),
            ({"noise": 0.05, "num_edges": 1000}, "4e27b8cac262cdf0"),
            ({"num_features": 4, "num_classes": 3}, "22e794fe7903430e"),
        ],
    )
    def test_known_graphs(self, options, want):
        assert digest(rmat(10, **options)) == want

    def test_threads_do_not_matter(self, monkeypatch):
        whole = digest(rmat(9, num_features=3, num_classes=4))
        monkeypatch.setattr(random_fields, "_RANGE", 77)
        assert digest(rmat(9, num_features=3, num_classes=4)) == whole

    def test_other_seeds_give_other_graphs(self):
        assert len({digest(rmat(8, seed=seed)) for seed in (0, 1, 2, -1, 2**63)}) == 5

    def test_more_edges_begin_like_fewer(self):
        few = rmat(8, num_edges=100)
        many = rmat(8, num_edges=200)
        assert bool((many.in_degrees() >= few.in_degrees()).all())


class TestShape:
    def test_sizes(self):
        graph = rmat(12, edge_factor=4)
        graph.csc.validate()
        assert (graph.num_nodes, graph.num_edges) == (4096, 16384)
        assert graph.csc.indices.dtype == torch.int32
        assert rmat(5, num_edges=7).num_edges == 7

    @pytest.mark.parametrize("scale", [0, 1, 2, 3])
    def test_tiny(self, scale):
        graph = rmat(scale, edge_factor=3)
        graph.csc.validate()
        assert (graph.num_nodes, graph.num_edges) == (2**scale, 3 * 2**scale)

    def test_no_edges(self):
        assert rmat(4, num_edges=0).num_edges == 0

    def test_skew(self):
        graph = rmat(14)
        for degrees in (graph.out_degrees(), graph.in_degrees()):
            top_1, top_10 = edge_shares(degrees, (0.01, 0.1))
            assert 0.2 < top_1 < 0.5
            assert 0.6 < top_10 < 0.9
        flat = rmat(14, probabilities=(0.25, 0.25, 0.25, 0.25))
        assert edge_shares(flat.out_degrees(), (0.01,))[0] < 0.03

    def test_quadrants_are_drawn_as_asked(self):
        # One level, so that the quadrant is the edge; the ids are scrambled by one of two
        # permutations.
        graph = rmat(1, num_edges=100_000, probabilities=(0.5, 0.3, 0.15, 0.05))
        counts = np.zeros((2, 2))
        np.add.at(counts, (graph.csc.indices.numpy(), graph.csc.destinations().numpy()), 1)
        counts = counts if counts[0, 0] > counts[1, 1] else counts[::-1, ::-1]
        assert np.allclose(counts / 100_000, [[0.5, 0.3], [0.15, 0.05]], atol=0.006)

    def test_ids_are_scrambled(self):
        degrees = rmat(12).out_degrees()
        top = torch.topk(degrees, 100).indices
        bits = torch.stack([(top >> bit) & 1 for bit in range(12)]).float().mean(1)
        assert float(bits.min()) > 0.3  # unscrambled, the vertices of high degree have few bits set
        assert float(bits.max()) < 0.7

    @pytest.mark.parametrize("scale", [1, 2, 3, 7, 12])
    def test_scrambling_is_a_permutation(self, scale):
        from pagraph.datasets import _random

        constants = np.array([3, 5, 2**63 + 8, 2**64 - 1, 7, 9, 11, 13], dtype=np.uint64)
        places = {int(_random.scramble(np.uint64(v), scale, constants)) for v in range(2**scale)}
        assert places == set(range(2**scale))

    def test_noise_takes_the_steps_away(self):
        assert np.ptp(_bounds(10, (0.57, 0.19, 0.19, 0.05), 0.1, 5)[:, 0].astype(float)) > 0
        bounds = _bounds(10, (0.57, 0.19, 0.19, 0.05), 0.0, 5)
        assert (bounds == bounds[0]).all()
        assert np.allclose(bounds[0] / 2**32, [0.57, 0.76, 0.95])


class TestOptions:
    def test_undirected_stores_both_directions(self):
        graph = rmat(8, undirected=True)
        matrix = np.zeros((256, 256), dtype=int)
        np.add.at(matrix, (graph.csc.indices.numpy(), graph.csc.destinations().numpy()), 1)
        assert (matrix == matrix.T).all()
        assert graph.num_edges == 2 * 16 * 256 - np.trace(matrix)

    @pytest.mark.parametrize("undirected", [False, True])
    def test_simple(self, undirected):
        graph = rmat(8, simple=True, undirected=undirected)
        ends = list(zip(graph.csc.indices.tolist(), graph.csc.destinations().tolist(), strict=True))
        assert len(set(ends)) == len(ends)
        assert all(u != v for u, v in ends)
        if undirected:
            assert {(v, u) for u, v in ends} == set(ends)

    def test_fields(self):
        graph = rmat(8, num_features=5, num_classes=4, fractions=(0.5, 0.25, 0.25))
        assert graph.ndata["feat"].shape == (256, 5)
        assert graph.ndata["feat"].dtype == torch.float32
        assert set(graph.ndata["label"].tolist()) == {0, 1, 2, 3}
        assert [int(graph.ndata[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [
            128,
            64,
            64,
        ]
        assert rmat(8).ndata == {}

    def test_progress(self):
        calls = []
        rmat(10, num_edges=3_000_000, progress=lambda done, total: calls.append((done, total)))
        assert len(calls) == 3
        assert calls[-1] == (3_000_000, 3_000_000)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scale": -1}, r"scale must be in \[0, 40\], got -1"),
            ({"scale": 41}, r"scale must be in \[0, 40\], got 41"),
            ({"edge_factor": -1}, "edge_factor must be a number of at least 0, got -1"),
            ({"edge_factor": float("nan")}, "edge_factor must be a number of at least 0, got nan"),
            ({"num_edges": -5}, "num_edges must be at least 0, got -5"),
            (
                {"probabilities": (0.5, 0.5, 0.5, 0.5)},
                "probabilities must be at least 0 and add up to 1",
            ),
            ({"probabilities": (1.2, -0.2, 0.0, 0.0)}, "probabilities must be at least 0"),
            ({"probabilities": (float("nan"), 0.2, 0.2, 0.2)}, "probabilities must be at least 0"),
            ({"noise": 0.5}, r"noise must be in \[0, 0.19\] for these probabilities, got 0.5"),
            ({"noise": -0.1}, "noise must be in"),
            ({"num_features": -1}, "num_features must be at least 0, got -1"),
            ({"num_classes": -1}, "num_classes must be at least 0, got -1"),
            ({"num_classes": 3, "fractions": (0.9, 0.9, 0)}, "fractions must add up to at most 1"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(ValueError, match=message):
            rmat(**{"scale": 4, **options})
