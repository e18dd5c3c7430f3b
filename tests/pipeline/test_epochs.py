"""Epochs of the core loader: determinism, resuming in the middle, statistics, arguments."""

import io

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.engine import PipelineOptions

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_graph(n=200, m=2000):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)
    graph.set_field("feat", torch.randn(n, 8))
    graph.set_field("label", torch.arange(n) % 7)
    return graph


def make_loader(graph, **options):
    defaults = dict(fields=["feat"], labels=["label"], batch_size=16, shuffle=True)
    return Loader(graph, torch.arange(100), NeighborSampler([4, 3]), **(defaults | options))


def bits(batch):
    blocks = [
        (b.indptr.tolist(), b.indices.tolist(), b.positions.tolist(), b.src_nodes.tolist())
        for b in batch.blocks
    ]
    return (
        batch.output_nodes.tolist(),
        blocks,
        batch.features["feat"].tolist(),
        batch.labels["label"].tolist(),
    )


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 1, 2, 8])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_same_bits_for_any_workers_and_depth(workers, prefetch):
    graph = make_graph()
    plain = make_loader(graph, seed=3, prefetch=0)
    expected = [bits(b) for _ in range(2) for b in plain]
    loader = make_loader(graph, seed=3, num_workers=workers, prefetch=prefetch)
    assert [bits(b) for _ in range(2) for b in loader] == expected


def test_rows_and_labels_belong_to_their_nodes():
    graph = make_graph()
    for batch in make_loader(graph):
        assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
        assert torch.equal(batch.labels["label"], graph.ndata["label"][batch.output_nodes])
        assert torch.equal(batch.blocks[-1].dst_nodes, batch.output_nodes)


@pytest.mark.every
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5, 7])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_resuming_gives_the_batches_that_would_have_come(seed, shuffle, at, prefetch):
    graph = make_graph()
    loader = make_loader(graph, seed=seed, shuffle=shuffle, prefetch=prefetch, num_workers=2)
    list(loader)  # epoch 0, so that the state is of a later one
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    rest = [bits(b) for b in batches]
    file.seek(0)
    resumed = make_loader(graph, seed=seed, shuffle=shuffle, prefetch=1)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.state_dict()["batch"] == (at if at < 7 else 0)
    if at < 7:
        assert [bits(b) for b in resumed] == rest
    if seed is not None:  # and the epochs after it
        assert [bits(b) for b in resumed] == [bits(b) for b in loader]


def test_a_state_before_the_first_epoch_and_of_a_finished_one():
    graph = make_graph()
    loader = make_loader(graph, seed=1)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 0)
    list(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
    second = [bits(b) for b in loader]
    resumed = make_loader(graph, seed=1)
    resumed.load_state_dict({**loader.state_dict(), "checksum": None, "epoch": 1})
    assert [bits(b) for b in resumed] == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, r"state\['seed'\] must be 1"),
        ({"batches": 3}, r"state\['batches'\] must be 7"),
        ({"num_seeds": 99}, r"state\['num_seeds'\] must be 100 for this loader, got 99"),
        ({"shuffle": False}, r"state\['shuffle'\] must be True for this loader, got False"),
        ({"batch_size": 15}, r"state\['batch_size'\] must be 16"),
        ({"permutation": torch.arange(100)}, "permutation must be None"),
        ({"version": 0}, "version"),
        ({"batch": 8}, r"batch in \[0, 7\], got batch 8"),
        ({"epoch": -1}, "epoch -1"),
    ],
)
def test_states_of_other_loaders_are_refused(change, message):
    loader = make_loader(make_graph(), seed=1)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**loader.state_dict(), "checksum": None, **change})
    with pytest.raises(ValueError, match="must have the key 'version'"):
        loader.load_state_dict({})
    assert len(list(loader)) == 7


def middle_of_an_epoch(**options):
    loader = make_loader(make_graph(), **options)
    batches = iter(loader)
    next(batches)
    next(batches)
    return loader, batches


@pytest.mark.parametrize("state", [None, 3, [("epoch", 1)], "state"])
def test_a_state_that_is_no_dict(state):
    with pytest.raises(TypeError, match="state must be a dict .*got " + type(state).__name__):
        make_loader(make_graph()).load_state_dict(state)


@pytest.mark.parametrize("seed", [None, 2])
def test_a_flipped_bit_of_a_saved_state_is_found(seed):
    """Wherever it is: torch itself reads other numbers for it."""
    loader, batches = middle_of_an_epoch(seed=seed)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    content = file.getvalue()
    rest = [bits(b) for b in batches]
    found = 0
    for place in range(0, len(content), 7):
        flipped = bytes([content[place] ^ 1 << place % 8])
        try:
            damaged = io.BytesIO(content[:place] + flipped + content[place + 1 :])
            state = torch.load(damaged, weights_only=True)
        except Exception:  # torch finds it in its own parts of the file
            continue
        try:
            loader.load_state_dict(state)
        except (TypeError, ValueError) as error:
            found += "its checksum says that it is damaged" in str(error)
            continue
        # Between the records of the archive, or in the checksum's own name.
        assert [bits(b) for b in loader] == rest
    assert found


@pytest.mark.parametrize("name", ["epoch", "batch", "key", "permutation", "checksum"])
def test_a_changed_state_is_refused_unless_its_checksum_is_deleted(name):
    loader, batches = middle_of_an_epoch()
    state = loader.state_dict()
    rest = [bits(b) for b in batches]
    changed = {**state, name: state["permutation"].flip(0) if name == "permutation" else 1}
    for damaged in (changed, state | {"one": "more"}):
        with pytest.raises(ValueError, match=r"state must be as .* delete state\['checksum'\] if"):
            loader.load_state_dict(damaged)
    del changed["checksum"]
    loader.load_state_dict(changed)
    loader.load_state_dict({key: state[key] for key in reversed(state)})
    assert [bits(b) for b in loader] == rest


@pytest.mark.parametrize("seed", [None, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_key_of_a_state_is_needed(seed, shuffle):
    loader, batches = middle_of_an_epoch(seed=seed, shuffle=shuffle)
    state = loader.state_dict()
    del state["checksum"]  # which older versions did not save
    for name in state:
        with pytest.raises(ValueError, match=f"state must have the key '{name}'"):
            loader.load_state_dict({k: v for k, v in state.items() if k != name})
    for name in ("epoch", "batch"):
        with pytest.raises(TypeError, match=rf"state\['{name}'\] must be an integer, got 1.5"):
            loader.load_state_dict({**state, name: 1.5})
    assert loader.state_dict()["batch"] == 2 and len(list(batches)) == 5


@pytest.mark.parametrize(
    ("permutation", "message"),
    [
        (None, "permutation must be given"),
        (torch.zeros(100, dtype=torch.int64), r"each number in \[0, 100\) once"),
        (torch.arange(1, 101), "once"),
        (torch.arange(99), r"one entry per seed \(100\), got 99"),
        (torch.arange(100.0), "1-D int64"),
        (torch.arange(100).view(10, 10), "1-D int64"),
        (list(range(100)), "1-D int64 tensor, got list"),
    ],
    ids=str,
)
def test_an_order_that_is_no_permutation_changes_nothing(permutation, message):
    loader, batches = middle_of_an_epoch()
    state = loader.state_dict()
    rest = [bits(b) for b in batches]
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**state, "checksum": None, "permutation": permutation})
    assert [bits(b) for b in loader] == rest


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_middle_of_an_epoch_without_a_seed_needs_its_key(shuffle):
    loader, _ = middle_of_an_epoch(shuffle=shuffle)
    with pytest.raises(ValueError, match=r"state\['key'\] must be the epoch's key .*batch 2"):
        loader.load_state_dict({**loader.state_dict(), "checksum": None, "key": None})


def orders(loader, epochs=2):
    return [[b.output_nodes.tolist() for b in loader] for _ in range(epochs)]


def test_a_fresh_state_takes_the_shuffle_back_to_the_start():
    graph = make_graph()
    fresh = make_loader(graph).state_dict()
    np.random.seed(1)
    expected = orders(make_loader(graph))
    loader = make_loader(graph)
    orders(loader, 3)
    loader.load_state_dict(fresh)
    np.random.seed(1)
    assert orders(loader) == expected


def test_a_finished_state_passes_through_a_loader_that_never_ran():
    graph = make_graph()
    loader = make_loader(graph)
    orders(loader)
    between = make_loader(graph)
    between.load_state_dict(loader.state_dict())
    resumed = make_loader(graph)
    resumed.load_state_dict(between.state_dict())
    np.random.seed(1)
    expected = orders(loader)
    np.random.seed(1)
    assert orders(resumed) == expected


def test_a_state_stays_as_it_was():
    loader, batches = middle_of_an_epoch()
    state = loader.state_dict()
    saved = state["permutation"].clone()
    rest = [bits(b) for b in batches]
    orders(loader)
    assert torch.equal(state["permutation"], saved)
    loader.load_state_dict(state)
    state["permutation"].zero_()
    assert [bits(b) for b in loader] == rest


def test_an_iterator_from_before_loading_does_not_move_the_place():
    loader, batches = middle_of_an_epoch(seed=1)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict({**state, "checksum": None, "batch": 0, "key": None})
    next(batches)
    assert loader.state_dict()["batch"] == 0


def test_statistics_by_epoch_and_in_total():
    graph = make_graph()
    loader = make_loader(graph, seed=0, num_workers=2)
    edges, rows = [], []
    for _ in range(2):
        batches = list(loader)
        edges.append(sum(block.num_edges for batch in batches for block in batch.blocks))
        rows.append(sum(len(batch.input_nodes) for batch in batches))
    for epoch, e, r in zip(loader.stats.epochs, edges, rows, strict=True):
        assert epoch.batches == 7
        assert epoch.counts == {"seeds": 100, "edges": e, "input_nodes": r}
        assert epoch.reads.fields["feat"].asked == r and epoch.reads.fields["label"].asked == 100
        assert epoch.reads.fields["feat"].nbytes == {"host": r * 32}
        assert {"sampling", "fetching", "building", "waiting"} <= set(epoch.seconds)
        assert all(seconds > 0 for seconds in epoch.seconds.values())
        assert epoch.reads.fields["feat"].seconds > 0
        assert epoch.loading_seconds == epoch.seconds["waiting"]
    total = loader.stats.total
    assert total.batches == 14 and total.counts["edges"] == sum(edges)
    assert total.reads.fields["feat"].asked == sum(rows)
    assert loader.stats.total == total  # reading never resets
    assert [e.epoch for e in loader.stats.epochs] == [0, 1]
    table = str(loader.stats)
    assert "epoch" in table and "total" in table and "feat" in table and f"{sum(edges):,}" in table


def test_an_abandoned_epoch_counts_what_was_delivered():
    loader = make_loader(make_graph(), seed=0, prefetch=3)
    for i, _ in enumerate(loader):
        if i == 1:
            break
    assert loader.stats.epochs[0].batches == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"fields": ["x"]}, KeyError, "fields must be among .*feat.*, got 'x'"),
        ({"num_workers": -1}, ValueError, "workers must be at least 0, got -1"),
        ({"prefetch": True}, TypeError, "prefetch must be an integer, got True"),
        ({"cache": "lots"}, ValueError, "lots"),
        ({"device": "cuda:99"}, ValueError, "cuda:99"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        make_loader(make_graph(), **options)


@pytest.mark.parametrize(
    ("seeds", "error"),
    [
        (torch.tensor([200]), IndexError),
        (torch.tensor([-1]), IndexError),
        (torch.tensor([0.5]), TypeError),
        (torch.zeros(1, 1, dtype=torch.int64), ValueError),
    ],
)
def test_bad_seeds(seeds, error):
    with pytest.raises(error, match="seeds must "):
        Loader(make_graph(), seeds, NeighborSampler([2]))


def test_pipeline_options():
    assert PipelineOptions(3, 2).threads == 3 and PipelineOptions(3, 2).max_batches == 6
    assert PipelineOptions(3, 0).threads == 0
    assert PipelineOptions(0, 1).threads >= 1


def test_an_error_in_a_worker_reaches_the_loop_and_the_loader_goes_on():
    graph = make_graph()
    loader = make_loader(graph, num_workers=2)
    saved = graph.ndata.pop("feat")
    with pytest.raises(KeyError, match="feat"):
        list(loader)
    graph.set_field("feat", saved)
    assert len(list(loader)) == 7


def test_another_batch_size_is_named_as_such():
    graph = make_graph()
    state = make_loader(graph, seed=1).state_dict()
    with pytest.raises(
        ValueError, match=r"state\['batch_size'\] must be 8 for this loader, got 16"
    ):
        make_loader(graph, seed=1, batch_size=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "options"), [("num_workers", (2**63, 2)), ("prefetch", (2, 2**40))]
)
def test_more_threads_and_batches_than_memory_holds_are_refused(name, options):
    with pytest.raises(ValueError, match=f"{name} must be at most 16384, got {max(options)}"):
        PipelineOptions(*options)


def test_statistics_of_many_broken_off_epochs_stay_bounded():
    loader = make_loader(make_graph(), prefetch=0)
    for _ in range(1005):
        next(iter(loader))
    assert len(loader.stats.epochs) == 1000
    assert loader.stats.epochs[0].epoch == 5
    assert loader.stats.to_dict()["epochs"] == loader.stats.total.batches == 1005
    assert loader.stats.total.counts["seeds"] == 16 * 1005
