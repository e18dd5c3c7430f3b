import json
from dataclasses import replace

import pytest
import torch

from pagraph.cli.train_run import result_line
from pagraph.train import EpochRecord, TrainOptions, TrainResult
from pagraph.train.result import RankRecord


def record(epoch, val=None, test=None, seconds=1.0):
    ranks = (RankRecord(10, 0.5, seconds, 0.25, 0.75, hits=1, asked=2),)
    metrics = {} if val is None else {"val": {"accuracy": val}, "test": {"accuracy": test}}
    return EpochRecord(epoch, 0.5, seconds, 0.25, 0.75, hit_rate=0.5, ranks=ranks, **metrics)


def result(*records):
    return TrainResult(TrainOptions(seed=7), tuple(records))


def test_best_is_the_first_epoch_with_the_highest_validation_accuracy():
    found = result(
        record(0, 0.5, 0.9),
        record(1),
        record(2, 0.7, 0.6),
        record(3, 0.7, 0.8),
        record(4, 0.6, 0.95),
    )
    assert found.best.epoch == 2
    assert (found.val_accuracy, found.test_accuracy) == (0.7, 0.6)


def test_the_summary_says_how_long_a_gpu_waited(monkeypatch):
    found = result(record(0, 0.5, 0.5), record(1, 0.5, 0.5, seconds=0.5), record(2, seconds=0.5))
    assert "the GPU" not in result_line(found, title="pagraph")
    monkeypatch.setattr(TrainOptions, "torch_device", lambda options: torch.device("cuda", 0))
    assert ", the GPU waited 50.0% of the time, cache" in result_line(found, title="pagraph")


def test_an_accuracy_of_zero_counts():
    found = result(record(0), record(1, 0.0, 0.3))
    assert (found.best.epoch, found.val_accuracy, found.test_accuracy) == (1, 0.0, 0.3)


def test_median_is_not_moved_by_the_first_epoch():
    found = result(
        record(0, 0.1, 0.1, seconds=100.0), record(1, seconds=2.0), record(2, seconds=3.0)
    )
    assert found.median_seconds("seconds") == 3.0
    with pytest.raises(AttributeError):
        found.median_seconds("minutes")


def test_json_has_the_promised_keys():
    report = json.loads(json.dumps(result(record(0, 0.5, 0.4), record(1)).to_json()))
    assert report["test_accuracy"] == 0.4
    assert report["val_accuracy"] == 0.5
    assert report["hit_rate"] == 0.5
    assert report["best_epoch"] == 0
    for name in ("epoch_seconds", "loading_seconds", "computing_seconds", "loss"):
        assert len(report[name]) == 2
    assert report["val_accuracy_by_epoch"] == [0.5, None]
    assert report["settings"]["seed"] == 7
    assert report["settings"]["fanout"] == [10, 10]


def test_an_epoch_of_several_processes():
    found = EpochRecord.of(
        4,
        [
            RankRecord(300, 1.0, 5.0, 1.0, 3.0, hits=10, asked=100),
            RankRecord(100, 2.0, 6.0, 2.0, 4.0, hits=30, asked=60),
        ],
    )
    assert (found.epoch, found.loss, found.seconds) == (4, 1.25, 6.0)
    assert (found.loading_seconds, found.computing_seconds, found.hit_rate) == (1.5, 3.5, 0.25)
    whole = result(found, found)
    assert whole.hit_rate == 0.25
    report = json.loads(
        json.dumps(TrainResult(TrainOptions(), (replace(found, val={"accuracy": 0.5}),)).to_json())
    )
    assert [(r["train"], r["hit_rate"], r["loading_seconds"]) for r in report["ranks"]] == [
        (300, 0.1, [1.0]),
        (100, 0.5, [2.0]),
    ]


def test_hit_rates_where_nothing_was_asked_and_where_nobody_counted():
    assert EpochRecord.of(0, [RankRecord(1, 1.0, 1.0, 1.0, 1.0, hits=0, asked=0)]).hit_rate == 0.0
    assert EpochRecord.of(0, [RankRecord(1, 1.0, 1.0, 1.0, 1.0)]).hit_rate is None
