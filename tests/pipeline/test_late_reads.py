"""A field that every step writes is read on delivery, and only there; all else stays ahead."""

import pytest
import torch
from full_stages import settle

import pagraph
from pagraph import Loader, NeighborSampler
from pagraph.datasets import sbm

N = 600
SEEDS = 10
PREFETCH = 3


def core_loader(graph, **options):
    loader = Loader(graph, torch.arange(N), NeighborSampler([3, 3]), fields=["x", "m"], **options)
    return loader, graph.ndata, lambda batch: (batch.input_nodes, batch.features)


def dgl_loader(graph, **options):
    pytest.importorskip("pagraph.dgl")
    from dgl.dataloading import NeighborSampler as DGLsSampler

    theirs = pagraph.dgl.to_dgl(graph)
    sampler = DGLsSampler([3, 3], prefetch_node_feats=["x", "m"])
    loader = pagraph.dgl.DataLoader(theirs, torch.arange(N), sampler, **options)
    return loader, theirs.ndata, lambda batch: (batch[0], batch[2][0].srcdata)


def pyg_loader(graph, **options):
    pytest.importorskip("pagraph.pyg")
    data = pagraph.pyg.to_pyg(graph)
    loader = pagraph.pyg.NeighborLoader(data, [3, 3], input_nodes=torch.arange(N), **options)
    return loader, data, lambda batch: (batch.n_id, batch)


FACES = {"core": core_loader, "dgl": dgl_loader, "pyg": pyg_loader}


def made(face, **options):
    graph = sbm(N, num_features=4, seed=0)
    graph.ndata["x"] = graph.ndata["feat"]
    graph.ndata["m"] = torch.zeros(N, 3)
    settings = {"batch_size": SEEDS, "prefetch": PREFETCH, "seed": 0, "num_workers": 1}
    return FACES[face](graph, **(settings | options))


def late_reads(loader):
    return loader.stats.total.counts.get("late_reads", 0)


def in_place(fields):
    fields["m"].add_(1)


def replaced(fields):
    fields["m"] = fields["m"] + 1


@pytest.mark.parametrize("write", [in_place, replaced])
@pytest.mark.parametrize("face", FACES)
def test_a_field_that_every_step_writes(face, write):
    loader, fields, parts = made(face)
    asked = 0
    for batch in loader:
        ids, rows = parts(batch)
        assert torch.equal(rows["m"], fields["m"][ids])
        assert torch.equal(rows["x"], fields["x"][ids])
        asked += len(ids)
        settle(loader)
        write(fields)
    total = loader.stats.total
    # Not where the reader found no batch, on a busy machine, and prepared one after the write.
    assert len(loader) // 2 <= late_reads(loader) <= len(loader)
    reads = {str(key).rsplit("/")[-1]: read for key, read in total.reads.fields.items()}
    assert reads["x"].asked == asked
    # Rows that were prepared before it was known were read in vain.
    assert asked <= reads["m"].asked <= asked + (PREFETCH + 4) * SEEDS * 16


@pytest.mark.parametrize("face", FACES)
def test_a_field_that_is_no_longer_written_is_read_ahead_again(face):
    loader, fields, parts = made(face)
    before = 0
    for number, batch in enumerate(loader):
        ids, rows = parts(batch)
        assert torch.equal(rows["m"], fields["m"][ids])
        if number < 20:
            settle(loader)
            in_place(fields)
        if number == 20 + PREFETCH + 4:
            before = late_reads(loader)
    assert late_reads(loader) == before > 10


@pytest.mark.parametrize("face", FACES)
def test_a_single_write_is_no_habit(face):
    loader, fields, parts = made(face)
    for number, batch in enumerate(loader):
        ids, rows = parts(batch)
        assert torch.equal(rows["m"], fields["m"][ids])
        if number in (9, 40):
            in_place(fields)
    # At most the batches in work and waiting at each write.
    assert late_reads(loader) <= 2 * (PREFETCH + 2)


@pytest.mark.parametrize("face", FACES)
def test_without_threads_nothing_is_late(face):
    loader, fields, parts = made(face, prefetch=0, num_workers=0)
    for batch in loader:
        ids, rows = parts(batch)
        assert torch.equal(rows["m"], fields["m"][ids])
        in_place(fields)
    assert late_reads(loader) == 0
