"""Batches on request: equal for equal seeds and keys, from any thread, and none of an epoch's."""

import http.client
import importlib.util
import json
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import citation, open_graph, sbm, write_graph
from pagraph.sampling import EdgeBatches

SEEDS = [7, 3, 900]
MISSING = torch.iinfo(torch.int64).min
"""NumPy's NaT."""


@pytest.fixture(scope="module")
def graph():
    return sbm(1000, num_features=8)


def loader_of(graph, **options):
    settings = {"fields": ["feat"], "labels": ["label"], "batch_size": 64, "seed": 1}
    return Loader(graph, torch.arange(1000), NeighborSampler([4, 3]), **(settings | options))


def tensors(batch):
    """All of a core batch that a request decides."""
    found = [batch.output_nodes, batch.input_nodes, batch.features["feat"], batch.labels["label"]]
    for block in batch.blocks:
        found += [block.indptr, block.indices, block.positions]
    return found


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_that_of_its_seeds_and_key(graph):
    loader = loader_of(graph)
    batch = loader.batch(SEEDS)
    assert batch.output_nodes.tolist() == SEEDS
    assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes.long()])
    assert torch.equal(batch.labels["label"], graph.ndata["label"][torch.tensor(SEEDS)])
    for _ in loader:
        loader.batch([1])
    assert equal(tensors(loader.batch(SEEDS)), tensors(batch))
    assert equal(
        tensors(loader_of(graph, num_workers=2).batch(torch.tensor(SEEDS))), tensors(batch)
    )
    others = [loader.batch(SEEDS, key=1), loader_of(graph, seed=2).batch(SEEDS)]
    assert not any(torch.equal(other.input_nodes, batch.input_nodes) for other in others)


def test_requests_change_no_epoch(graph):
    alone = [tensors(batch) for batch in loader_of(graph, shuffle=True)]
    loader = loader_of(graph, shuffle=True)
    beside = []
    for batch in loader:
        loader.batch([5])
        beside.append(tensors(batch))
    assert all(equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_a_seed_that_comes_twice_has_two_places(graph):
    batch = loader_of(graph).batch([7, 3, 7])
    assert batch.output_nodes.tolist() == [7, 3, 7]
    block = batch.blocks[-1]
    first, second = (
        block.src_nodes[block.indices[block.indptr[at] : block.indptr[at + 1]].long()]
        for at in (0, 2)
    )
    assert torch.equal(first, second)


def test_no_seeds_make_an_empty_batch(graph):
    batch = loader_of(graph).batch([])
    assert len(batch.input_nodes) == 0 and batch.features["feat"].shape == (0, 8)


def test_eight_threads_ask_while_an_epoch_runs(graph, tmp_path):
    write_graph(graph, tmp_path / "g")
    loader = loader_of(open_graph(tmp_path / "g"), cache="20%", num_workers=2)
    alone = loader_of(graph)
    expected = {seed: tensors(alone.batch([seed, 999 - seed])) for seed in range(80)}
    wrong = []

    def ask(thread):
        for seed in range(thread, 80, 8):
            try:
                if not equal(tensors(loader.batch([seed, 999 - seed])), expected[seed]):
                    wrong.append(seed)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    count = sum(1 for _ in loader)
    for thread in threads:
        thread.join()
    assert wrong == [] and count == len(loader)
    requests = loader.stats.requests
    assert (requests.batches, requests.counts["seeds"]) == (80, 160)
    assert loader.stats.total.batches == 80 + count
    assert "requests" in str(loader.stats)


def test_the_cache_serves_requests(graph, tmp_path):
    write_graph(graph, tmp_path / "g")
    loader = loader_of(open_graph(tmp_path / "g"), cache=1.0)
    assert loader.stats.requests is None
    for seed in range(3):
        loader.batch([seed])
    reads = loader.stats.total.reads.total
    assert reads.hits == reads.asked > 0


def ask_in_child(loader, expected, done):
    done.put(equal(tensors(loader.batch(SEEDS)), expected))


def test_a_forked_process_may_ask(graph):
    loader = loader_of(graph)
    expected = tensors(loader.batch(SEEDS))
    context = multiprocessing.get_context("fork")
    done = context.Queue()
    child = context.Process(target=ask_in_child, args=(loader, expected, done))
    child.start()
    assert done.get(timeout=HANGING)
    child.join()


def test_after_close_it_goes_on(graph):
    loader = loader_of(graph)
    batch = tensors(loader.batch(SEEDS))
    loader.close()
    assert equal(tensors(loader.batch(SEEDS)), batch)


def test_types_and_links_have_requests():
    graph = citation(300)
    seeds = {"paper": torch.arange(50)}
    loader = Loader(graph, seeds, NeighborSampler([3]), fields={"paper": ["feat"]}, seed=1)
    one, other = (loader.batch({"paper": [3, 1]}) for _ in range(2))
    assert one.output_nodes["paper"].tolist() == [3, 1]
    assert torch.equal(one.features["paper"]["feat"], other.features["paper"]["feat"])
    with pytest.raises(KeyError, match="seeds must be of vertex types among .*, got 'book'"):
        loader.batch({"book": [1]})
    pairs = Graph.from_coo([0, 1, 2], [1, 2, 3])
    sampler = EdgeBatches(NeighborSampler([2]))
    links = Loader(pairs, torch.tensor([0, 1]), sampler).batch([2])
    assert links.links.edge_ids.tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1000],), IndexError, r"seeds must be in \[0, 1000\), got 1000"),
        (([-1],), IndexError, r"seeds must be in \[0, 1000\), got -1"),
        (([10**30],), IndexError, f"seeds must fit into 64 bits, got {10**30}$"),
        (([1, -(2**63) - 1],), IndexError, f"seeds must fit into 64 bits, got {-(2**63) - 1}$"),
        ((10**5000,), IndexError, "seeds must fit into 64 bits, got one of 16,610 bits"),
        ((np.uint64([1, 2**63]),), IndexError, f"seeds must fit into 64 bits, got {2**63}$"),
        (([0.5],), TypeError, "seeds must hold integers, got float64"),
        (
            ([True, False],),
            ValueError,
            r"seeds must have shape \(1000,\) as a mask of all vertices",
        ),
        (([1], None), TypeError, "key must be an integer, got None"),
        (([1], -1), ValueError, r"key must be in \[0, 2\*\*64\), got -1"),
        (([1], "a"), TypeError, "key must be an integer"),
    ],
)
def test_a_wrong_request_is_one_error_and_the_next_one_works(graph, arguments, error, message):
    loader = loader_of(graph)
    with pytest.raises(error, match=message):
        loader.batch(arguments[0], **({"key": arguments[1]} if len(arguments) > 1 else {}))
    assert loader.batch([1]).output_nodes.tolist() == [1]


class TestPyG:
    """PyG's loaders: any vertices by ``batch``, some of their inputs by a call."""

    @pytest.fixture(scope="class")
    @staticmethod
    def data(graph):
        pytest.importorskip("torch_geometric")
        from pagraph.pyg import to_pyg

        return to_pyg(graph)

    def test_the_batch_of_any_seeds(self, data):
        from pagraph.pyg import NeighborLoader

        loader = NeighborLoader(data, [4, 3], input_nodes=torch.arange(500, 600), seed=1)
        batch = loader.batch(SEEDS)
        assert batch.n_id[:3].tolist() == SEEDS
        assert (batch.batch_size, batch.input_id.tolist()) == (3, [0, 1, 2])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        list(loader)
        again = loader.batch(torch.tensor(SEEDS))
        assert torch.equal(again.n_id, batch.n_id) and torch.equal(again.e_id, batch.e_id)
        assert not torch.equal(loader.batch(SEEDS, key=1).n_id, batch.n_id)

    def test_a_call_takes_places_among_the_inputs(self, data):
        from pagraph.pyg import LinkNeighborLoader, NeighborLoader

        loader = NeighborLoader(data, [4, 3], input_nodes=torch.arange(500, 600), seed=1)
        batch = loader([5, 0])
        assert batch.n_id[:2].tolist() == [505, 500]
        assert batch.input_id.tolist() == [5, 0]
        assert torch.equal(loader(torch.tensor([5, 0])).n_id, batch.n_id)
        with pytest.raises(IndexError, match=r"index must be in \[0, 100\), got 100"):
            loader([100])
        for wide in (10**30, -(10**30), 2**63):
            for request in (loader, loader.batch):
                with pytest.raises(IndexError, match=f"must fit into 64 bits, got {wide}$"):
                    request([wide])
        links = LinkNeighborLoader(data, [2], edge_label_index=data.edge_index[:, :10], seed=1)
        found = links([4])
        ends = found.n_id[found.edge_label_index].view(-1)
        assert torch.equal(ends, data.edge_index[:, 4])

    def test_nothing_is_later_than_a_request(self, data):
        from pagraph.pyg import NeighborLoader

        timed = data.clone()
        timed.time = torch.arange(1000)
        loader = NeighborLoader(timed, [5, 5], input_nodes=[0], time_attr="time", seed=1)
        batch = loader.batch([999, 999], time=torch.tensor([100, 600]))
        seed_time = torch.tensor([100, 600])[batch.batch]
        later = (batch.time > seed_time)[2:]
        assert not later.any() and len(later)
        assert (loader.batch([999]).time <= 999).all()  # its own time
        with pytest.raises(TypeError, match="time must be integers"):
            loader.batch([1], time=torch.tensor([1.5]))
        with pytest.raises(ValueError, match="time must have one .* per seed"):
            loader.batch([1], time=torch.tensor([1, 2]))

    def test_wrong_requests_in_time_are_one_error_and_the_next_one_works(self, data):
        from pagraph.pyg import NeighborLoader

        timed = data.clone()
        timed.time = torch.arange(1000)
        timed.time[7] = MISSING
        loader = NeighborLoader(timed, [5, 5], input_nodes=[0], time_attr="time", seed=1)
        expected = loader.batch([5], time=torch.tensor([600]))
        wrong = [
            ([1000], [600], IndexError, r"seeds must be in \[0, 1000\), got 1000"),
            ([-1], [600], IndexError, r"seeds must be in \[0, 1000\), got -1"),
            ([5], [MISSING], ValueError, "missing"),
            ([7], None, ValueError, "missing"),
            ([5], "today", TypeError, "time"),
        ]
        for seeds, times, error, message in wrong:
            given = torch.tensor(times) if isinstance(times, list) else times
            with pytest.raises(error, match=message) as raised:
                loader.batch(seeds, time=given)
            assert "\n" not in str(raised.value)
            again = loader.batch([5], time=torch.tensor([600]))
            assert torch.equal(again.n_id, expected.n_id)

    def test_a_time_before_all_data_gives_the_seeds_alone(self, data):
        from pagraph.pyg import NeighborLoader

        timed = data.clone()
        timed.time = torch.arange(1000)
        loader = NeighborLoader(timed, [5, 5], input_nodes=[0], time_attr="time", seed=1)
        batch = loader.batch([5, 5, 9], time=torch.tensor([-1, 0, -(2**62)]))
        assert batch.n_id[:3].tolist() == [5, 5, 9]
        # Vertex 0 is as late as the second seed's time, and others are later.
        assert (batch.n_id[3:] == 0).all()
        assert batch.batch_size == 3

    def test_eight_threads_ask_in_time_and_some_wrongly(self, data):
        from pagraph.pyg import NeighborLoader

        timed = data.clone()
        timed.time = torch.arange(1000)
        loader = NeighborLoader(timed, [5, 5], input_nodes=[0], time_attr="time", seed=1)
        alone = [loader.batch([i], time=torch.tensor([900])).n_id for i in range(40)]
        found = {}

        def ask(part):
            for i in range(part, 40, 8):
                with pytest.raises(IndexError):
                    loader.batch([1000 + i], time=torch.tensor([900]))
                found[i] = loader.batch([i], time=torch.tensor([900])).n_id

        threads = [threading.Thread(target=ask, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(found[i], alone[i]) for i in range(40))

    def test_what_has_no_requests_says_so(self, data):
        from pagraph.pyg import NeighborLoader

        loader = NeighborLoader(data, [2])
        with pytest.raises(ValueError, match="time must be None for a loader without time_attr"):
            loader.batch([1], time=torch.tensor([1]))

        class Own(NeighborLoader):
            def filter_fn(self, out):
                return "mine"

        own = Own(data, [2])
        with pytest.raises(ValueError, match="needs a loader without a custom filter_fn"):
            own.batch([1])
        assert own([1]) == "mine"

    def test_a_transform_is_called_and_its_error_is_the_requests_own(self, data):
        from pagraph.pyg import NeighborLoader

        def transform(batch):
            if batch.n_id[0] == 7:
                raise OSError("seven")
            batch.noise = torch.rand(3)
            return batch

        loader = NeighborLoader(data, [2], transform=transform, num_workers=2, seed=1)
        noise = loader.batch([5]).noise
        with pytest.raises(OSError, match="seven"):
            loader.batch([7])
        assert torch.equal(loader.batch([5]).noise, noise)

    def test_types_keep_to_the_loaders(self):
        pytest.importorskip("torch_geometric")
        from pagraph.pyg import NeighborLoader, to_pyg

        data = to_pyg(citation(300))
        loader = NeighborLoader(data, [3], input_nodes=("paper", [0]), seed=1)
        batch = loader.batch(("paper", [5, 2]))
        assert batch["paper"].n_id[:2].tolist() == [5, 2]
        assert batch["paper"].batch_size == 2
        with pytest.raises(ValueError, match="seeds must be of the loader's vertex type 'paper'"):
            loader.batch(("author", [1]))
        with pytest.raises(ValueError, match="seeds must be a vertex type, or a pair"):
            loader.batch([1])

    def test_a_users_own_sampler_is_called_by_one_thread_at_a_time(self, data):
        from torch_geometric.sampler import BaseSampler, SamplerOutput

        from pagraph.pyg import NeighborLoader

        inside = []

        class Alone(BaseSampler):
            def sample_from_nodes(self, inputs, **_):
                inside.append(1)
                assert len(inside) == 1
                threading.Event().wait(0.001)
                inside.pop()
                none = torch.empty(0, dtype=torch.long)
                metadata = (inputs.input_id, inputs.time)
                return SamplerOutput(inputs.node, none, none, none, metadata=metadata)

            def sample_from_edges(self, *_, **__):
                raise AssertionError

        loader = NeighborLoader(data, [2], neighbor_sampler=Alone())
        found = {}
        threads = [
            threading.Thread(target=lambda at=at: found.update({at: loader.batch([at])}))
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {at: batch.n_id.tolist() for at, batch in found.items()} == {
            at: [at] for at in range(8)
        }


def test_the_example_answers():
    pytest.importorskip("torch_geometric")
    pytest.importorskip("starlette")
    uvicorn = pytest.importorskip("uvicorn")
    from argparse import Namespace

    from torch_geometric.nn import GraphSAGE

    from pagraph.pyg import to_pyg

    path = Path(__file__).parent.parent / "examples" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve", path)
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    data = to_pyg(sbm(2000, num_features=16))
    model = GraphSAGE(16, 16, num_layers=2, out_channels=int(data.y.max()) + 1)
    options = Namespace(fanout=[5, 5], seed=0, epochs=12)
    serve.train(model, data, options)
    app = serve.make_app(data, model, options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    connection = http.client.HTTPConnection(*server.servers[0].sockets[0].getsockname())

    def get(vertex):
        connection.request("GET", f"/score/{vertex}")
        answer = connection.getresponse()
        return answer, answer.read().decode()

    answers = []
    for vertex in range(200):
        answer, text = get(vertex)
        assert answer.headers["server-timing"].startswith("batch;dur=")
        answers.append(json.loads(text))
    right = sum(answer["class"] == int(data.y[answer["vertex"]]) for answer in answers)
    assert right > 120, right
    assert json.loads(get(7)[1]) == answers[7]
    missing, text = get(2000)
    assert (missing.status, text) == (404, "seeds must be in [0, 2000), got 2000")
    connection.close()
    server.should_exit = True
    thread.join(timeout=HANGING)
    assert not thread.is_alive()
