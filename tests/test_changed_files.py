"""Files that change while they are open: what was written is read, the rest is one error; no page
that is gone is touched, which would end the process."""

import importlib.util
import io
import os
import shutil

import numpy as np
import pytest
import torch
from fresh_processes import run_text

from pagraph import FormatError, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.datasets import open_graph, rmat, write_graph
from pagraph.graph.watched import file_behind

N = 1000


@pytest.fixture
def folder(disk_folder):
    graph = rmat(10, edge_factor=8, num_features=6, seed=2)
    graph.edata["weight"] = torch.ones(graph.num_edges)
    write_graph(graph, disk_folder / "graph")
    return disk_folder / "graph"


def feature_file(folder):
    return folder / "node-feat.npy"


def overwrite(path, change=lambda rows: rows + 1):
    """Write other rows in place, and at no moment fewer than there were; returns them."""
    rows = change(np.load(path))
    before = path.stat().st_mtime_ns
    saved = io.BytesIO()
    np.save(saved, rows)
    with open(path, "r+b") as file:
        file.write(saved.getvalue())
        file.truncate()
    # Clocks of file systems have ticks of some milliseconds.
    os.utime(path, ns=(before + 10**9, before + 10**9))
    return torch.from_numpy(rows)


def core(graph, **options):
    options = {"fields": ["feat"], "batch_size": 100, "seed": 1, "shuffle": True} | options
    return Loader(graph, range(N), NeighborSampler([4, 3]), **options)


def of_dgl(graph, **options):
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("needs DGL")
    from pagraph import dgl

    sampler = dgl.NeighborSampler([4, 3], prefetch_node_feats=["feat"])
    return dgl.DataLoader(graph, torch.arange(N), sampler, batch_size=100, shuffle=True, **options)


def of_pyg(graph, **options):
    pytest.importorskip("torch_geometric")
    from pagraph.pyg import NeighborLoader, to_pyg

    given = {"input_nodes": torch.arange(N), "batch_size": 100, "shuffle": True}
    return NeighborLoader(to_pyg(graph), [4, 3], **given, **options)


def rows_of(batch):
    """Ids and rows of any of the three's batches."""
    if isinstance(batch, tuple):
        return batch[0], batch[2][0].srcdata["feat"]
    if hasattr(batch, "n_id"):
        return batch.n_id, batch.x
    return batch.input_nodes, batch.features["feat"]


def wrong_rows(batches, expected):
    found = [rows_of(batch) for batch in batches]
    assert found
    return sum(int((rows != expected[ids.long()]).any(1).sum()) for ids, rows in found)


KINDS = {"core": core, "dgl": of_dgl, "pyg": of_pyg}


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{"cache": 0.5}, {"cache": 0.5, "num_workers": 2, "lookahead": 3}, {"cache": 0}],
    ids=str,
)
@pytest.mark.parametrize("mapped", ["ours", "the user's"])
def test_rows_written_in_an_epoch_are_read_in_the_next(folder, kind, options, mapped):
    graph = open_graph(folder)
    path = feature_file(folder)
    if mapped == "the user's":
        path = path.with_name("own.npy")
        shutil.copy(feature_file(folder), path)
        graph.ndata["feat"] = torch.from_numpy(np.load(path, mmap_mode="c"))
    loader = KINDS[kind](graph, **options)
    other = KINDS[kind](graph, **options)  # may share the cache
    for each in (loader, other):
        assert wrong_rows(each, torch.from_numpy(np.load(path).copy())) == 0
    for number, _ in enumerate(loader):
        if number == 3:
            expected = overwrite(path)
    for each in (loader, other, loader, KINDS[kind](graph, **options)):
        assert wrong_rows(each, expected) == 0
    if options["cache"]:  # which is filled again
        assert loader.stats.total.reads.total.hits > 0


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
def test_rows_cached_on_a_device_are_read_anew(folder, transfer, there):
    device = HostAccelerator()
    options = {"device": device, "sampling_device": device if there else "cpu"}
    loader = core(open_graph(folder), cache=0.5, transfer=transfer, **options)
    before = torch.from_numpy(np.load(feature_file(folder)))
    assert wrong_rows(loader, before) == wrong_rows(loader, before) == 0
    expected = overwrite(feature_file(folder))
    assert wrong_rows(loader, expected) == wrong_rows(loader, expected) == 0
    assert loader.stats.total.reads.total.hits > 0
    loader.close()


def test_requests_find_what_was_written(folder, monkeypatch):
    monkeypatch.setattr("pagraph.engine.engine._LOOK_SECONDS", 0)
    loader = core(open_graph(folder), cache=1.0)
    seeds = [[number] for number in range(4)]
    before = torch.from_numpy(np.load(feature_file(folder)))
    assert wrong_rows(map(loader.batch, seeds), before) == 0
    expected = overwrite(feature_file(folder))
    assert wrong_rows(map(loader.batch, seeds), expected) == 0


def test_what_was_derived_of_a_file_is_derived_again(folder):
    graph = open_graph(folder)
    options = {"fields": [], "batch_size": N, "seed": 1}
    loader = Loader(graph, range(N), NeighborSampler([-1], prob="weight"), **options)
    assert sum(batch.blocks[0].num_edges for batch in loader) == graph.csc.indptr[N]
    (path,) = folder.glob("*weight*")
    overwrite(path, np.zeros_like)
    assert sum(batch.blocks[0].num_edges for batch in loader) == 0
    os.truncate(path, 1000)
    with pytest.raises(FormatError, match=f"{path} was shortened"):
        list(loader)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.astype(np.int32), "must keep its dtype and shape"),
        (lambda rows: rows.reshape(-1, 3), "must keep its dtype and shape"),
        (lambda rows: np.concatenate([rows, rows]), "must keep its dtype and shape"),
        (lambda rows: rows[:10], "was shortened while it was open: 368 of"),
    ],
)
def test_rows_of_another_form_are_refused(folder, change, message):
    loader = core(open_graph(folder), cache=0.5)
    list(loader)
    overwrite(feature_file(folder), change)
    with pytest.raises(FormatError, match=f"node-feat.npy {message}") as refused:
        iter(loader)
    assert "\n" not in str(refused.value)


def test_a_file_that_another_replaced_is_refused(folder):
    loader = core(open_graph(folder), cache=0.5)
    list(loader)
    path = feature_file(folder)
    shutil.copy(path, folder / "new.npy")
    os.replace(folder / "new.npy", path)
    with pytest.raises(FormatError, match=r"must not be replaced .* open the graph again"):
        iter(loader)
    assert len(list(core(open_graph(folder)))) == len(loader)


def test_a_removed_file_is_still_read(folder):
    loader = core(open_graph(folder), cache=0.5)
    expected = torch.from_numpy(np.load(feature_file(folder)))
    feature_file(folder).unlink()
    assert wrong_rows(loader, expected) == wrong_rows(loader, expected) == 0


def test_a_file_that_a_user_mapped_may_be_replaced(folder):
    """Torch's own loaders go on with the rows that are mapped, too."""
    graph = open_graph(folder)
    path = folder / "own.npy"
    shutil.copy(feature_file(folder), path)
    expected = torch.from_numpy(np.load(path))
    graph.ndata["feat"] = torch.from_numpy(np.load(path, mmap_mode="r+"))
    loader = core(graph, cache=0.5)
    assert wrong_rows(loader, expected) == 0
    np.save(folder / "new.npy", expected.numpy() + 1)
    os.replace(folder / "new.npy", path)
    assert wrong_rows(loader, expected) == 0


def test_memory_has_no_file(folder):
    held = torch.zeros(9)
    for tensor in (held, held[3:], torch.from_numpy(np.zeros(9)), torch.empty(0)):
        assert file_behind(tensor) is None
    mapped = open_graph(folder).ndata["feat"]
    assert file_behind(mapped) is file_behind(mapped[5:]) is not None


SHORTENED = """
import os, sys
from pagraph import FormatError, Loader, NeighborSampler
from pagraph.datasets import open_graph

loader = Loader(
    open_graph(sys.argv[1]), range(1000), NeighborSampler([4, 3]), fields=["feat"], batch_size=100,
    num_workers=int(sys.argv[3]),
)
for _ in range(2):
    list(loader)
os.truncate(sys.argv[2], os.path.getsize(sys.argv[2]) // 3 if int(sys.argv[4]) else 0)
try:
    list(loader)
except FormatError as error:
    print(error)
"""


@pytest.mark.every
@pytest.mark.parametrize("name", ["edge-indices", "edge-indptr", "node-feat"])
@pytest.mark.parametrize("some", [1, 0], ids=["a third is left", "nothing is left"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_shortened_between_two_epochs(folder, name, some, workers):
    """At once, when the last look at it was a moment ago: SIGBUS would end the process."""
    path = folder / f"{name}.npy"
    said = run_text(SHORTENED, folder, [str(folder), str(path), str(workers), str(some)])
    assert said.count("\n") == 1 and str(path) in said and "shortened" in said
