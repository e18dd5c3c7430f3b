"""``input_nodes`` in every form."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.sampler import BaseSampler

from pagraph.pyg import NeighborLoader, NeighborSampler

COUNT, WANTED = 9, [2, 3, 5, 8]
MASK = torch.zeros(COUNT, dtype=torch.bool).index_fill(0, torch.tensor(WANTED), True)


def make_data():
    edge_index = torch.stack([torch.arange(COUNT), (torch.arange(COUNT) + 1) % COUNT])
    return Data(x=torch.arange(COUNT).float().view(-1, 1), edge_index=edge_index)


def make_hetero():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.zeros(COUNT, 1), torch.zeros(4, 1)
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.arange(COUNT) % 4, torch.arange(COUNT)]
    )
    return data


IDS = {
    "LongTensor": torch.tensor(WANTED),
    "int32": torch.tensor(WANTED, dtype=torch.int32),
    "one column": torch.tensor(WANTED).view(-1, 1),
    "list": WANTED,
    "tuple": tuple(WANTED),
    "list of tensors": [torch.tensor(i) for i in WANTED],
    "ndarray": np.array(WANTED),
    "uint8 ndarray": np.array(WANTED, dtype=np.uint8),
    "read-only ndarray": np.frombuffer(np.array(WANTED).tobytes(), dtype=np.int64),
}
MASKS = {
    "BoolTensor": MASK,
    "one column of bool": MASK.view(-1, 1),
    "bool ndarray": MASK.numpy(),
    "list of bool": MASK.tolist(),
}


def seen(loader):
    batches = list(loader)
    return (
        sum((batch.n_id[: batch.batch_size].tolist() for batch in batches), []),
        sum((batch.input_id.tolist() for batch in batches), []),
    )


@pytest.mark.parametrize("nodes", IDS.values(), ids=IDS)
def test_ids(nodes):
    loader = NeighborLoader(make_data(), [1], nodes, batch_size=3)
    assert seen(loader) == (WANTED, [0, 1, 2, 3])
    assert loader.input_nodes is nodes and loader.input_id is None
    assert loader.input_data.node.tolist() == WANTED and loader.dataset == range(4)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_whose_input_id_is_the_vertex(mask):
    loader = NeighborLoader(make_data(), [1], mask, batch_size=3)
    assert seen(loader) == (WANTED, WANTED)
    assert loader.input_nodes is mask and loader.input_id is None


@pytest.mark.parametrize(
    "nothing", [[], np.array([]), torch.zeros(COUNT, dtype=torch.bool)], ids=str
)
@pytest.mark.parametrize("seed", [None, 1])
def test_no_seeds_are_said_where_the_loader_is_made(nothing, seed):
    with pytest.warns(RuntimeWarning, match="an epoch has no batches: there are no seeds"):
        assert len(NeighborLoader(make_data(), [1], nothing, seed=seed)) == 0


def test_memory_for_data_in_memory():
    loader = NeighborLoader(make_data(), [1], memory="10MiB")
    with pytest.warns(RuntimeWarning, match="memory=10 MiB has no effect: "):
        next(iter(loader))


def test_all_and_ranges():
    everything = list(range(COUNT))
    assert seen(NeighborLoader(make_data(), [1], batch_size=4)) == (everything, everything)
    assert seen(NeighborLoader(make_data(), [1], range(8, 1, -3))) == ([8, 5, 2], [0, 1, 2])
    for nothing in ([], np.array([]), torch.zeros(COUNT, dtype=torch.bool)):
        assert seen(NeighborLoader(make_data(), [1], nothing)) == ([], [])


def test_the_users_own_numbers():
    own = torch.tensor([40, 30, 20, 10])
    for nodes in (torch.tensor(WANTED), MASK, MASK.numpy()):
        loader = NeighborLoader(make_data(), [1], nodes, input_id=own, batch_size=3)
        assert seen(loader) == (WANTED, own.tolist()) and loader.input_id is own


@pytest.mark.every
@pytest.mark.parametrize(
    "nodes",
    [*IDS.values(), *MASKS.values()],
    ids=[*IDS, *MASKS],
)
def test_of_one_type_among_several(nodes):
    data = make_hetero()
    for pair in (("paper", nodes), ["paper", nodes]):
        batches = list(NeighborLoader(data, [1], pair, batch_size=3))
        assert (
            sum((b["paper"].n_id[: b["paper"].batch_size].tolist() for b in batches), []) == WANTED
        )
        ids = sum((b["paper"].input_id.tolist() for b in batches), [])
        assert ids == (WANTED if any(nodes is mask for mask in MASKS.values()) else [0, 1, 2, 3])


@pytest.mark.parametrize("nodes", ["author", ("author", None), ["author", None]], ids=str)
def test_all_of_one_type(nodes):
    loader = NeighborLoader(make_hetero(), [1], nodes, batch_size=3)
    assert [b["author"].input_id.tolist() for b in loader] == [[0, 1, 2], [3]]
    assert loader.input_data.input_type == "author"


def test_pyg_makes_the_same_input():
    data, hetero = make_data(), make_hetero()
    sampler = NeighborSampler(data, [1])
    for nodes in (None, torch.tensor(WANTED), WANTED, MASK):
        ours = NeighborLoader(data, [1], nodes).input_data
        theirs = PyGNeighborLoader(data, [1], nodes, neighbor_sampler=sampler).input_data
        assert torch.equal(ours.node, theirs.node)
        assert (ours.input_id is None) == (theirs.input_id is None)
        assert ours.input_id is None or torch.equal(ours.input_id, theirs.input_id)
    for nodes in ("paper", ("paper", None), ("paper", MASK)):
        ours = NeighborLoader(hetero, [1], nodes).input_data
        theirs = PyGNeighborLoader(
            hetero, [1], nodes, neighbor_sampler=NeighborSampler(hetero, [1])
        ).input_data
        assert (
            torch.equal(ours.node, theirs.node) and ours.input_type == theirs.input_type == "paper"
        )


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        (torch.tensor([0, 9]), IndexError, r"input_nodes must be in \[0, 9\), got 9"),
        ([-1], IndexError, r"input_nodes must be in \[0, 9\), got -1"),
        (range(5, 12), IndexError, "got 11"),
        (
            torch.ones(8, dtype=torch.bool),
            ValueError,
            "must be a mask of all 9 vertices, got one of 8",
        ),
        (np.ones(10, dtype=bool), ValueError, "must be a mask of all 9 vertices, got one of 10"),
        (torch.tensor([0.0, 1.0]), TypeError, "must be integers or a mask, got torch.float32"),
        ([0.5], TypeError, "must be integers or a mask, got torch.float64"),
        (["a", "b"], TypeError, "must be integers or a mask, got list of"),
        ("paper", TypeError, "must be integers or a mask, got str of"),
        (torch.tensor(3), ValueError, r"must have one dimension, got shape \(\)"),
        (
            torch.zeros(2, 2, dtype=torch.int64),
            ValueError,
            r"must have one dimension, got shape \(2, 2\)",
        ),
    ],
    ids=str,
)
def test_what_is_refused(nodes, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(make_data(), [1], nodes)
    if not isinstance(nodes, str):
        with pytest.raises(error, match=message):
            NeighborLoader(make_hetero(), [1], ("paper", nodes))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (None, "must be a vertex type, or a pair of a vertex type and vertices, got None"),
        (
            torch.arange(3),
            "must be a vertex type, or a pair of a vertex type and vertices, got Tensor",
        ),
        ((0, [1]), "must be a vertex type, or a pair"),
        ("venue", r"must name one of the vertex types \['paper', 'author'\], got 'venue'"),
        (("venue", [0]), "got 'venue'"),
        (("venue", None), "got 'venue'"),
    ],
    ids=str,
)
def test_types_that_are_refused_add_none_to_the_data(nodes, message):
    data = make_hetero()
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [1], nodes)
    assert data.node_types == ["paper", "author"]


def test_numbers_of_another_length_are_refused():
    with pytest.raises(
        ValueError, match="input_id must have one entry for each of the 4 input nodes, got 3"
    ):
        NeighborLoader(make_data(), [1], MASK, input_id=torch.arange(3))


class Own(BaseSampler):
    """A user's own sampler."""

    edge_permutation = None

    def __init__(self, data):
        self.sampler = NeighborSampler(data, [1])

    def sample_from_nodes(self, inputs, **kwargs):
        return self.sampler.sample_from_nodes(inputs)

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError


def test_the_same_holds_for_a_users_own_sampler():
    data, hetero = make_data(), make_hetero()
    assert seen(NeighborLoader(data, [1], MASK.numpy(), neighbor_sampler=Own(data))) == (
        WANTED,
        WANTED,
    )
    loader = NeighborLoader(hetero, [1], ("paper", MASK.numpy()), neighbor_sampler=Own(hetero))
    assert sum((b["paper"].input_id.tolist() for b in loader), []) == WANTED
    with pytest.raises(IndexError, match="got 9"):
        NeighborLoader(data, [1], [9], neighbor_sampler=Own(data))
    with pytest.raises(ValueError, match="must name one of the vertex types"):
        NeighborLoader(hetero, [1], "venue", neighbor_sampler=Own(hetero))
