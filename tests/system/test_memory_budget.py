"""The arguments memory and lookahead: what they take, and how they refuse the rest."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.engine import PipelineOptions, parse_lookahead
from pagraph.system.budget import Budget, memory_budget


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [("4GiB", 4 << 30), ("500 MB", 500_000_000), (1 << 20, 1 << 20), (np.int64(7), 7)],
)
def test_bytes_are_taken_as_a_cache_takes_them(value, nbytes):
    assert memory_budget(value) == Budget(limit=nbytes)


@pytest.mark.parametrize("value", [None, "auto", " AUTO "])
def test_no_bytes_mean_what_is_free(value):
    assert memory_budget(value) is None


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("10%", ValueError, "not a share, got '10%'"),
        (0.5, ValueError, "not a share, got 0.5"),
        (0, ValueError, "more than 0, got 0"),
        ("0", ValueError, "more than 0, got '0'"),
        (-1, ValueError, "memory must be at least 0 bytes, got -1"),
        ("4", ValueError, 'memory must have a unit as text ("4MiB", "4%"), got \'4\''),
        ("4GiBs", ValueError, "memory must be"),
        (True, TypeError, 'memory must be bytes (1048576, "500MB", "4GiB") or "auto", got True'),
        ([1], TypeError, "got [1]"),
    ],
)
def test_other_memory_is_refused(value, error, message):
    with pytest.raises(error) as raised:
        memory_budget(value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("value", "ahead"), [("auto", None), ("Auto ", None), (0, 0), (np.int32(8), 8), (2**14, 2**14)]
)
def test_lookahead(value, ahead):
    assert PipelineOptions(lookahead=parse_lookahead(value)).lookahead == ahead


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "lookahead must be at least 0, got -1"),
        (2**14 + 1, ValueError, "lookahead must be at most 16384, got 16385"),
        ("8", ValueError, "lookahead must be \"auto\" or an integer, got '8'"),
        (True, TypeError, "lookahead must be an integer, got True"),
        (None, TypeError, "lookahead must be an integer, got None"),
        (1.5, TypeError, "lookahead must be an integer, got 1.5"),
    ],
)
def test_other_lookahead_is_refused(value, error, message):
    graph = Graph.from_coo([0, 1], [1, 0], ndata={"feat": torch.eye(2)})
    with pytest.raises(error) as raised:
        Loader(graph, [0], NeighborSampler([1]), lookahead=value)
    assert str(raised.value) == message
