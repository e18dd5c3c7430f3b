"""Statistics of a frame's columns, where the spread of numbers is small against their size."""

import numpy as np
import pytest
import torch

from pagraph.graph.fields import Fields
from pagraph.pyg.columns import FrameColumns


@pytest.mark.parametrize(
    ("start", "width"), [(1_700_000_000_000, 60_000), (10**15, 9), (1_700_000_000_000_000_000, 100)]
)
def test_large_numbers_of_a_small_spread(start, width):
    away = np.random.default_rng(0).integers(0, width, 1000)
    columns = {"whole": start + away, "real": (start + away).astype(np.float64)}
    fields = Fields("vertex", 1000, {n: torch.from_numpy(v) for n, v in columns.items()})
    stats = FrameColumns.of(fields, 1000).stats
    for name, column in columns.items():
        exact = (column - column.min()).astype(np.float64)
        assert stats[name]["STD"] == pytest.approx(exact.std(), rel=1e-6)
        mean = float(column.min()) + exact.mean()
        assert stats[name]["MEAN"] == pytest.approx(mean, rel=1e-12)
