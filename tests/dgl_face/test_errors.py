"""What DGL's loader refuses, ours refuses with the same type: earlier, and saying what is wrong."""

import subprocess
import textwrap

import numpy as np
import pytest
import torch
from cases import dgl, make_graph, ours
from fresh_processes import HANGING, bare_python

NeighborSampler = dgl.dataloading.NeighborSampler
IDS = torch.arange(10)
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without CUDA")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": -3}, ValueError, "got -3"),
        ({"batch_size": None}, ValueError, "got None"),
        ({"batch_size": 2.5}, ValueError, "got 2.5"),
        (
            {"pin_prefetcher": True},
            ValueError,
            "pin_prefetcher=True needs a graph on the CPU, a CUDA device",
        ),
        ({"use_prefetch_thread": True}, ValueError, "use_prefetch_thread=True needs"),
        ({"use_ddp": True}, ValueError, "init_process_group"),
        ({"gpu_cache": [("feat", 3)]}, AssertionError, "gpu_cache must be a dict"),
        ({"gpu_cache": {"node": [3]}}, AssertionError, "gpu_cache must be a dict of dicts"),
        ({"gpu_cache": {"node": {"feat": 10}}}, ValueError, "gpu_cache needs a CUDA device"),
        ({"gpu_cache": {"edge": {"w": 10}}}, ValueError, "gpu_cache needs a CUDA device"),
        (
            {"gpu_cache": {"node": {"feat": 1.5}}},
            TypeError,
            r"gpu_cache\['node'\]\['feat'\] must be an integer, got 1.5",
        ),
        ({"sampler": [1]}, ValueError, "sampler is not supported"),
        ({"batch_sampler": [1]}, ValueError, "batch_sampler is not supported"),
        (
            {"shapes": "fixed"},
            ValueError,
            "shapes is for pagraph.Loader and .*: compilers do not trace",
        ),
        ({"collate_fn": list}, TypeError, "unexpected keyword argument 'collate_fn'"),
        ({"pin_memory": True}, TypeError, "unexpected keyword argument 'pin_memory'"),
        ({"dataset": IDS}, TypeError, "unexpected keyword argument 'dataset'"),
        ({"no_such": 1}, TypeError, "unexpected keyword argument 'no_such'"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"cache": "lots"}, ValueError, "cache must be .*got 'lots'"),
        ({"cache": -5}, ValueError, "got -5"),
        pytest.param(
            {"cache": "9" * 400 + "GB"},
            ValueError,
            "cache must be a finite number of bytes",
            id="huge",
        ),
        ({"cache": float("nan")}, ValueError, "nan"),
        ({"cache": 1.5}, ValueError, "got 1.5"),
        ({"cache": True}, TypeError, "got True"),
        ({"cache_policy": "hot"}, ValueError, "cache_policy must be one of"),
        ({"cache_policy": 3}, TypeError, "cache_policy must be a name or a function"),
        (
            {"cache_dtype": "fp8"},
            ValueError,
            "cache_dtype must be None, torch.float16, .*got 'fp8'",
        ),
        ({"prefetch": -1}, ValueError, "prefetch must be at least 0, got -1"),
        ({"prefetch": 1.5}, TypeError, "prefetch must be an integer, got 1.5"),
        ({"num_workers": 1.5}, TypeError, "num_workers must be an integer, got 1.5"),
        ({"seed": -1}, ValueError, "seed must be in"),
        ({"seed": "x"}, TypeError, "seed must be an integer or None, got 'x'"),
        ({"device": "tpu"}, ValueError, "tpu"),
        pytest.param(
            {"device": "cuda"}, ValueError, "device='cuda' needs a CUDA device", marks=no_cuda
        ),
        pytest.param(
            {"device": "cuda:7"}, ValueError, "device='cuda:7' needs a CUDA device", marks=no_cuda
        ),
        pytest.param(
            {"use_uva": True}, ValueError, "use_uva=True needs a CUDA device", marks=no_cuda
        ),
    ],
    ids=str,
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        ours(make_graph(), IDS, NeighborSampler([2]), **options)


@pytest.mark.parametrize("fanouts", [[0], [2, 0], [-2], [2.5]])
def test_bad_fanouts_are_refused_before_the_first_batch(fanouts):
    with pytest.raises((ValueError, TypeError), match="fanouts must be"):
        ours(make_graph(), IDS, NeighborSampler(fanouts))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([3, 300]), IndexError, r"indices must be in \[0, 300\), got 300"),
        (torch.tensor([-1]), IndexError, "got -1"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, r"must be 1-D, got shape \(2, 2\)"),
        (IDS.int(), dgl.DGLError, "id dtype"),
        (
            torch.ones(300, dtype=torch.bool),
            dgl.DGLError,
            r"must be ids, such as mask.nonzero\(\).squeeze\(1\)$",
        ),
        ("abc", AttributeError, "device"),
        (None, AttributeError, "NoneType"),
        (
            np.array(["a", "b"]),
            TypeError,
            "indices must be ids of an integer dtype, got an array of <U1",
        ),
        (np.array([1, "b"], dtype=object), TypeError, "got an array of object"),
        ({"_N": np.array(["a"])}, TypeError, r"indices\['_N'\] must be ids"),
        (np.array([1.5]), dgl.DGLError, "id dtype torch.int64, got torch.float64"),
    ],
)
def test_bad_indices(ids, error, message):
    with pytest.raises(error, match=message):
        ours(make_graph(), ids, NeighborSampler([2]))


def weighted_graph():
    graph = make_graph()
    graph.edata["p"] = torch.ones(graph.num_edges())
    return graph


NODE_WISE = {
    "native": NeighborSampler([2]),
    "weighted": NeighborSampler([2], prob="p"),
    "labor": dgl.dataloading.LaborSampler([2]),
    "shadow": dgl.dataloading.ShaDowKHopSampler([2]),
}


@pytest.mark.parametrize("sampler", NODE_WISE.values(), ids=NODE_WISE)
@pytest.mark.parametrize("wrap", [lambda ids: ids, lambda ids: {"_N": ids}], ids=["tensor", "dict"])
def test_ids_outside_the_graph_under_every_node_wise_sampler(sampler, wrap):
    graph = weighted_graph()
    for wrong in (300, -1):
        with pytest.raises(IndexError, match=rf"indices.* must be in \[0, 300\), got {wrong}"):
            ours(graph, wrap(torch.tensor([3, wrong])), sampler)
    with pytest.raises(dgl.DGLError, match=r"id dtype torch.int64, got torch.int32"):
        ours(graph, wrap(IDS.int()), sampler)
    assert len(list(ours(graph, wrap(torch.tensor([0, 299])), sampler))) == 2


@pytest.mark.parametrize("sampler", [NODE_WISE["native"], NODE_WISE["labor"]])
def test_ids_of_heterographs_are_checked_by_type(sampler):
    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    graph = dgl.heterograph(
        {("a", "x", "b"): ends, ("b", "y", "a"): ends}, num_nodes_dict={"a": 3, "b": 5}
    )
    assert len(list(ours(graph, {"a": torch.arange(3), "b": torch.arange(5)}, sampler))) == 8
    with pytest.raises(IndexError, match=r"indices\['a'\] must be in \[0, 3\), got 3"):
        ours(graph, {"b": torch.tensor([3]), "a": torch.tensor([3])}, sampler)
    with pytest.raises(dgl.DGLError, match=r"node types among \['a', 'b'\], got 'c'"):
        ours(graph, {"c": torch.tensor([0])}, sampler)
    with pytest.raises(
        dgl.DGLError, match=r"must be a dict for a graph of the node types \['a', 'b'\]"
    ):
        ours(graph, torch.tensor([0]), sampler)


def test_samplers_with_their_own_meaning_of_indices_take_any():
    class Shifted(NeighborSampler):
        def sample(self, g, indices, exclude_eids=None):
            return super().sample(g, indices - 1000, exclude_eids)

    ids = torch.arange(1000, 1010)
    assert [b[1].tolist() for b in ours(make_graph(), ids, Shifted([2]), batch_size=10)] == [
        list(range(10))
    ]
    patched = NeighborSampler([2])
    patched.sample = lambda g, indices: indices
    assert [b.tolist() for b in ours(make_graph(), ids, patched, batch_size=10)] == [ids.tolist()]


as_edge_sampler = dgl.dataloading.as_edge_prediction_sampler
EDGE_WISE = {
    "native": as_edge_sampler(NeighborSampler([2])),
    "negatives": as_edge_sampler(
        NeighborSampler([2]), negative_sampler=dgl.dataloading.negative_sampler.Uniform(1)
    ),
    "shadow": as_edge_sampler(dgl.dataloading.ShaDowKHopSampler([2])),
    "labor": as_edge_sampler(dgl.dataloading.LaborSampler([2]), exclude="self"),
}


@pytest.mark.parametrize("sampler", EDGE_WISE.values(), ids=EDGE_WISE)
@pytest.mark.parametrize("wrap", [lambda ids: ids, lambda ids: {"_E": ids}], ids=["tensor", "dict"])
def test_edges_outside_the_graph_under_every_edge_wise_sampler(sampler, wrap):
    graph = make_graph()  # 300 vertices, 2500 edges
    for wrong in (2500, -1):
        with pytest.raises(IndexError, match=rf"indices.* must be in \[0, 2500\), got {wrong}"):
            ours(graph, wrap(torch.tensor([3, wrong])), sampler)
    with pytest.raises(dgl.DGLError, match=r"id dtype torch.int64, got torch.int32"):
        ours(graph, wrap(IDS.int()), sampler)
    with pytest.raises(dgl.DGLError, match=r"id dtype torch.int64, got torch.float32"):
        ours(graph, wrap(IDS.float()), sampler)
    pairs = [
        batch[1].edata[dgl.EID].tolist()
        for batch in ours(graph, wrap(torch.tensor([2499, 0])), sampler)
    ]
    assert pairs == [[2499], [0]]


def test_edges_of_heterographs_are_checked_by_type():
    counts = {("a", "x", "b"): 1, ("b", "x", "a"): 2, ("b", "y", "a"): 3}
    data = {etype: (torch.zeros(n, dtype=torch.int64),) * 2 for etype, n in counts.items()}
    graph, sampler = dgl.heterograph(data), EDGE_WISE["native"]
    for name, etype in {"y": ("b", "y", "a"), ("b", "x", "a"): ("b", "x", "a")}.items():
        count = counts[etype]
        pairs = [
            batch[1].num_edges(etype) for batch in ours(graph, {name: torch.arange(count)}, sampler)
        ]
        assert pairs == [1] * count
        with pytest.raises(IndexError, match=rf"must be in \[0, {count}\), got {count}"):
            ours(graph, {("a", "x", "b"): torch.tensor([0]), name: torch.tensor([count])}, sampler)
    for unknown in ("z", ("a", "y", "b"), "x", 3):
        with pytest.raises(dgl.DGLError, match="indices must name edge types among .*, got "):
            ours(graph, {unknown: torch.tensor([0])}, sampler)
    with pytest.raises(dgl.DGLError, match="got 'x', a name that several edge types have"):
        ours(graph, {"x": torch.tensor([0])}, sampler)
    with pytest.raises(dgl.DGLError, match="must be a dict for a graph of the edge types"):
        ours(graph, torch.tensor([0]), sampler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": "reverse"}, "exclude must be one of .*'reverse_id'.*; got 'reverse'"),
        (
            {"exclude": "reverse_id"},
            "reverse_eids must be given with exclude='reverse_id', got None",
        ),
        (
            {"exclude": "reverse_types"},
            "reverse_etypes must be given with exclude='reverse_types', got None",
        ),
    ],
)
def test_bad_exclusion(options, message):
    with pytest.raises(ValueError, match=message):
        ours(make_graph(), IDS, as_edge_sampler(NeighborSampler([2]), **options))


def test_edge_samplers_with_their_own_meaning_of_indices_take_any():
    class Shifted(dgl.dataloading.EdgePredictionSampler):
        def sample(self, g, seed_edges):
            return super().sample(g, seed_edges - 5000)

    batches = list(
        ours(make_graph(), torch.tensor([5003, 5004]), Shifted(NeighborSampler([2])), batch_size=2)
    )
    assert [batch[1].edata[dgl.EID].tolist() for batch in batches] == [[3, 4]]


def test_a_distributed_graph_is_refused():
    graph = object.__new__(dgl.distributed.DistGraph)
    with pytest.raises(
        TypeError, match="graph must not be a DistGraph; use dgl.dataloading.DistNodeDataLoader"
    ):
        ours(graph, IDS, NeighborSampler([2]))


def test_what_dgl_takes_on_the_cpu_is_taken():
    options = dict(use_alternate_streams=True, use_prefetch_thread=False, pin_prefetcher=False)
    loader = ours(
        make_graph(),
        IDS,
        NeighborSampler([2]),
        batch_size=10,
        gpu_cache={"node": {"feat": 0}},
        **options,
    )
    assert [batch[1].tolist() for batch in loader] == [IDS.tolist()]


def test_a_leaf_that_cannot_be_moved():
    class Counted(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            return indices, len(indices)

    with pytest.raises(AttributeError, match="'int' object has no attribute 'to'"):
        list(ours(make_graph(), IDS, Counted()))


def test_a_dataset_that_cannot_shuffle():
    class Fixed:
        device = torch.device("cpu")

        def __len__(self):
            return 1

        def __getitem__(self, i):
            return IDS

    with pytest.raises(AttributeError, match="shuffle"):
        ours(make_graph(), Fixed(), NeighborSampler([2]), shuffle=True)


def test_a_failing_worker_init_fn_reaches_the_reader(no_threads_left):
    def refuse(worker):
        raise OSError("no such core")

    loader = ours(make_graph(), IDS, NeighborSampler([2]), num_workers=2, worker_init_fn=refuse)
    with pytest.raises(OSError, match="no such core"):
        list(loader)


def run(script):
    return subprocess.run(
        [bare_python(), "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )


@pytest.mark.compilers
def test_no_cuda_call_at_import_construction_or_iteration():
    done = run("""
        import torch
        def forbidden(*args, **kwargs):
            raise SystemExit("a CUDA call")
        torch.cuda.init = torch.cuda._lazy_init = torch.cuda.current_device = forbidden
        import pagraph.dgl, dgl
        graph = dgl.graph(([0, 1], [1, 2]))
        graph.ndata["feat"] = torch.ones(3, 2)
        sampler = dgl.dataloading.NeighborSampler([2], prefetch_node_feats=["feat"])
        loader = pagraph.dgl.DataLoader(graph, torch.arange(3), sampler)
        print(len(list(loader)), loader.device)
    """)
    assert done.stdout.split() == ["3", "cpu"], done.stderr


def test_the_placeholder_for_graphbolt():
    done = run("""
        import pagraph.dgl, dgl, sys
        graphbolt = sys.modules.get("dgl.graphbolt")
        if type(graphbolt).__name__ != "_Placeholder":
            raise SystemExit(77)  # this DGL's own GraphBolt loads
        try:
            graphbolt.ItemSet
        except ImportError as error:
            print(error)
        try:
            from dgl.graphbolt import ItemSampler
        except pagraph.dgl.GraphBoltMissingError as error:
            print(error)
        print(hasattr(graphbolt, "__file__"), repr(graphbolt))
        print(isinstance(dgl.graph(([0], [1])), graphbolt.FusedCSCSamplingGraph))  # dgl.distributed asks
        try:
            graphbolt.FusedCSCSamplingGraph(1)
        except ImportError as error:
            print(error)
    """)
    if done.returncode == 77:
        pytest.skip("this DGL's GraphBolt loads with this torch")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("dgl.graphbolt.ItemSet needs DGL's GraphBolt binary"), done.stderr
    assert lines[1].startswith("dgl.graphbolt.ItemSampler needs")
    assert "for torch" in lines[0] and "everything outside dgl.graphbolt works" in lines[0]
    assert lines[2].startswith("False")
    assert lines[3] == "False" and lines[4].startswith("dgl.graphbolt.FusedCSCSamplingGraph needs")


def test_importing_after_dgl_failed_to_import():
    """A notebook in which ``import dgl`` has just failed must not need a restart."""
    done = run("""
        try:
            import dgl
            raise SystemExit(77)
        except (ImportError, FileNotFoundError):
            pass
        import pagraph.dgl, dgl
        print(dgl.graph(([0], [1])).num_edges())
    """)
    if done.returncode == 77:
        pytest.skip("DGL imports without help here")
    assert done.stdout.strip() == "1", done.stderr


def test_dgl_missing_is_one_clear_error():
    done = run("""
        import sys
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "dgl":
                    raise ModuleNotFoundError(name)
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "dgl" else real(name, *a)
        try:
            import pagraph.dgl
        except ImportError as error:
            print(type(error).__name__, error)
    """)
    assert done.stdout.startswith("MissingDependencyError pagraph.dgl needs DGL"), done.stderr


def test_what_is_no_graph_or_no_sampler_is_refused_at_once():
    with pytest.raises(
        AttributeError, match=r"graph_sampler must have a method sample.*got list without one"
    ):
        ours(make_graph(), IDS, [5, 5])
    with pytest.raises(
        AttributeError, match="graph must be a dgl.DGLGraph or have a device, got str"
    ):
        ours("graph", IDS, NeighborSampler([2]))


@pytest.mark.parametrize(
    ("prefetched", "message"),
    [
        (
            {"prefetch_node_feats": "feat"},
            "nodes of type '_N' must have the column 'f', they have .*'feat', 'label'",
        ),
        ({"prefetch_labels": ["lable"]}, "column 'lable', they have .*'label'"),
        (
            {"prefetch_edge_feats": ["v"]},
            "edges of type .*'_E'.* must have the column 'v', they have .*'w'",
        ),
    ],
)
def test_a_missing_column_is_named_with_those_that_are_there(prefetched, message):
    with pytest.raises(KeyError, match=message):
        list(ours(make_graph(), IDS, NeighborSampler([2], **prefetched)))
