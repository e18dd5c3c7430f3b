"""Where the time of real epochs goes."""

import json

import numpy as np
import pytest
import torch

from pagraph import Graph, NeighborSampler
from pagraph.graph.mapped import map_npy
from pagraph.profile import LOADING_STAGES, hit_rate_curve, measure_loading

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_graph(folder):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 200, (2, 1500))
    np.save(folder / "feat.npy", np.zeros((200, 3), np.float32))
    label = torch.zeros(200, dtype=torch.int64)
    return Graph.from_coo(
        src, dst, 200, ndata={"feat": map_npy(folder / "feat.npy"), "label": label}
    )


@pytest.mark.parametrize("prefetch", [0, 2])
def test_epochs_by_stage(tmp_path, prefetch):
    graph, seeds, sampler = make_graph(tmp_path), torch.arange(100), NeighborSampler([3, 3])
    seen, told = [], []
    times = measure_loading(
        graph,
        seeds,
        sampler,
        fields=["feat"],
        batch_size=20,
        cache="20%",
        epochs=3,
        seed=4,
        prefetch=prefetch,
        compute=lambda batch: seen.append(len(batch.features["feat"])),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(i, 15) for i in range(1, 16)] and len(seen) == 15
    assert [(e.epoch, e.batches) for e in times.epochs] == [(0, 5), (1, 5), (2, 5)]
    (record,) = hit_rate_curve(
        graph, seeds, sampler, batch_size=20, epochs=3, policies=["degree"], budgets=[0.2], seed=4
    )
    assert [e.hit_rate for e in times.epochs] == record.hit_rate_by_epoch
    assert sum(e.rows for e in times.epochs) == sum(seen)
    for e in times.epochs:
        assert set(e.stages) == set(LOADING_STAGES) and min(e.stages.values()) >= 0
        reader = ("filling", "waiting", "copying", "computing")
        assert sum(e.stages[stage] for stage in reader) <= e.seconds
        assert e.stages["sampling"] > 0 and e.stages["gathering"] > 0 and e.stages["computing"] > 0
    assert set(times.medians) == {*LOADING_STAGES, "epoch"}
    assert (
        min(e.seconds for e in times.epochs[1:])
        <= times.medians["epoch"]
        <= max(e.seconds for e in times.epochs[1:])
    )
    assert "40 of 200 vertices" in times.cache
    read = json.loads(json.dumps(times.to_json()))
    assert (
        len(read["epochs"]) == 3
        and read["settings"]["computes"] is True
        and "waiting" in read["medians"]
    )


def test_one_epoch_without_fields(tmp_path):
    times = measure_loading(make_graph(tmp_path), torch.arange(10), NeighborSampler([2]), epochs=1)
    assert (
        times.medians["epoch"] == times.epochs[0].seconds
        and times.epochs[0].stages["computing"] == 0
    )
    assert times.settings["computes"] is False and times.epochs[0].rows == 0


def test_labels_are_read_for_the_seeds(tmp_path):
    times = measure_loading(
        make_graph(tmp_path),
        torch.arange(10),
        NeighborSampler([2]),
        labels=["label"],
        batch_size=4,
        epochs=2,
    )
    assert [e.rows for e in times.epochs] == [10, 10]


def test_writes_a_timeline(tmp_path):
    graph, sampler = make_graph(tmp_path), NeighborSampler([2])
    measure_loading(
        graph, torch.arange(10), sampler, batch_size=4, epochs=2, trace=tmp_path / "trace.json"
    )
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "sampling" for event in events) == 6
    with pytest.raises(OSError):
        measure_loading(graph, torch.arange(10), sampler, trace=tmp_path / "missing" / "trace.json")


def test_an_error_in_the_step_ends_the_threads(tmp_path):
    def fail(batch):
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        measure_loading(
            make_graph(tmp_path),
            torch.arange(100),
            NeighborSampler([2]),
            batch_size=5,
            compute=fail,
        )


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"epochs": True}, TypeError, "epochs must be an integer, got True"),
        (
            {"seeds": torch.empty(0, dtype=torch.int64)},
            ValueError,
            "seeds must hold at least 1 vertex, got 0",
        ),
        ({"fields": ["fest"]}, ValueError, r"fields must be among \['feat', 'label'\], got 'fest'"),
        ({"labels": ["lable"]}, ValueError, "got 'lable'"),
        ({"policy": "best"}, ValueError, "cache_policy must be one of .*, got 'best'"),
        ({"cache": "150%"}, ValueError, r"cache must be a share in \(0, 1\], got 1.5"),
    ],
)
def test_bad_input(tmp_path, changes, error, text):
    settings = {"seeds": torch.arange(10)} | changes
    with pytest.raises(error, match=text):
        measure_loading(
            make_graph(tmp_path), settings.pop("seeds"), NeighborSampler([2]), **settings
        )
