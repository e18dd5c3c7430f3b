"""A run that was cut goes on from its checkpoint with the bits of one that was not."""

import json
import os
import re
import subprocess
from dataclasses import replace

import pytest
import torch
from community import community_graph
from fresh_processes import ended, forked_python
from processes import environment, start
from torch.utils._pytree import tree_flatten

from pagraph import Graph
from pagraph.datasets import write_graph
from pagraph.errors import FormatError
from pagraph.partition import partition_graph, write_partition
from pagraph.train import Reporter, TrainOptions
from pagraph.train.checkpoint import open_checkpoint
from pagraph.train.distributed import World
from pagraph.train.links import make_link_task
from pagraph.train.loop import train
from pagraph.train.task import make_task

QUICK = {"batch_size": 100, "epochs": 4, "hidden": 8, "fanout": (5, 5), "device": "cpu", "lr": 0.01}


class Cut(Exception):
    pass


class Cutting(Reporter):
    """Ends the run after the second batch of an epoch."""

    def __init__(self, epoch):
        self._epoch, self.resumed_after = epoch, None

    def resumed(self, epochs):
        self.resumed_after = epochs

    def batch(self, epoch, done, total):
        assert total > 2
        if (epoch, done) == (self._epoch, 2):
            raise Cut


def run(graph, folder, cut=None, **settings):
    options = TrainOptions(**{**QUICK, **settings})
    make = make_link_task if options.task == "links" else make_task
    return train(make(graph, options), options, checkpoint=folder, reporter=cut)


def saved(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def without_times(state):
    """What a checkpoint holds but for times, and for hits: a cache is filled anew."""
    records = [
        {name: record[name] for name in ("epoch", "loss", "val", "test")}
        for record in state["records"]
    ]
    return {**state, "records": records, "checksum": None}


def assert_the_same(got, want):
    (ours, form), (theirs, other) = (tree_flatten(without_times(state)) for state in (got, want))
    assert form == other
    for one, two in zip(ours, theirs, strict=True):
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


KINDS = [
    {"model": "sage", "layers": "dgl"},
    {"model": "gcn", "layers": "pyg", "grad_compression": "fp16"},
    {"model": "gat", "layers": "pyg", "eval_every": 3},
    {"task": "links", "layers": "dgl", "num_workers": 2},
    {"task": "links", "layers": "pyg", "model": "gcn"},
]


@pytest.mark.many
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_goes_on_with_the_same_bits(graph, tmp_path, kind):
    whole = run(graph, tmp_path / "whole", **kind)
    with pytest.raises(Cut):
        run(graph, tmp_path / "cut", Cutting(0), **kind)
    assert list((tmp_path / "cut").iterdir()) == []
    for epoch, resumed_after in ((1, None), (3, 1)):
        cut = Cutting(epoch)
        with pytest.raises(Cut):
            run(graph, tmp_path / "cut", cut, **kind)
        assert cut.resumed_after == resumed_after
    again = run(graph, tmp_path / "cut", **{**kind, "num_workers": 1, "cache": "1KiB"})
    assert [e.loss for e in again.epochs] == [e.loss for e in whole.epochs]
    assert [(e.val, e.test) for e in again.epochs] == [(e.val, e.test) for e in whole.epochs]
    assert_the_same(
        {**saved(tmp_path / "cut"), "settings": None},
        {**saved(tmp_path / "whole"), "settings": None},
    )
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["checkpoint.pt"]


@pytest.mark.many
def test_a_finished_run_is_not_repeated_and_may_be_made_longer(graph, tmp_path):
    first = run(graph, tmp_path, epochs=2)
    assert run(graph, tmp_path, Cutting(2), epochs=2).to_json() == first.to_json()
    longer = run(graph, tmp_path, epochs=4)
    assert [e.loss for e in longer.epochs] == [e.loss for e in run(graph, None, epochs=4).epochs]


def test_a_checkpoint_with_older_names_goes_on(graph, tmp_path):
    first = run(graph, tmp_path, epochs=1)
    state = saved(tmp_path)
    for record in state["records"]:
        for one in [record, *record["ranks"]]:
            one["compiling_seconds"] = one.pop("kernels_seconds")
    torch.save(without_checksum(state), tmp_path / "checkpoint.pt")
    assert run(graph, tmp_path, Cutting(1), epochs=1).to_json() == first.to_json()


def test_a_checkpoint_of_another_run_is_refused(graph, tmp_path):
    run(graph, tmp_path, epochs=2)
    file = re.escape(str(tmp_path / "checkpoint.pt"))
    for name, value, message in (
        ("hidden", 16, rf"hidden must be 8 as in the checkpoint {file}, got 16"),
        ("seed", 5, rf"seed must be 0 as in the checkpoint {file}, got 5"),
        ("layers", "pyg", rf"layers must be 'dgl' as in the checkpoint {file}, got 'pyg'"),
        ("epochs", 1, rf"epochs must be at least the 2 of the checkpoint {file}, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            run(graph, tmp_path, **{"epochs": 2, name: value})
    mask = graph.ndata["train_mask"]
    mask[mask.nonzero()[0]], mask[(~mask).nonzero()[0]] = False, True
    with pytest.raises(
        ValueError,
        match=rf"graph must be the one as in the checkpoint {file}, '600 vertices, .*', got '600",
    ):
        run(graph, tmp_path, epochs=2)


@pytest.mark.every
@pytest.mark.parametrize(
    "damage", ["short", "flipped", "pickle", "list", "lacking", "empty", "folder", "fifo"]
)
def test_a_damaged_file_is_one_error(graph, tmp_path, damage):
    run(graph, tmp_path, epochs=1)
    file = tmp_path / "checkpoint.pt"
    content = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "fifo":
        os.mkfifo(file)
    elif damage in ("list", "lacking"):
        torch.save(
            {"list": [1], "lacking": {"version": 1, "records": [], "settings": 5}}[damage], file
        )
    else:
        middle = len(content) // 2
        flipped = content[:100] + bytes(255 - b for b in content[100:middle]) + content[middle:]
        file.write_bytes(
            {
                "short": content[:middle],
                "flipped": flipped,
                "pickle": b"cos\nsystem\n",
                "empty": b"",
            }[damage]
        )
    with pytest.raises((FormatError, IsADirectoryError), match="checkpoint must be a"):
        run(graph, tmp_path, epochs=2)


def without_checksum(state):
    return {name: value for name, value in state.items() if name != "checksum"}


def test_a_flipped_bit_is_found(graph, tmp_path):
    """Wherever it is: torch itself reads other numbers for it."""
    run(graph, tmp_path, epochs=1)
    options = TrainOptions(**QUICK, layers="dgl")
    checkpoint = open_checkpoint(tmp_path, make_task(graph, options), options, World())
    file = tmp_path / "checkpoint.pt"
    content = file.read_bytes()
    expected = checkpoint._read()
    weights = next(iter(saved(tmp_path)["model"].values())).numpy().tobytes()
    inside = content.index(weights)
    places = [*range(0, len(content), len(content) // 200), *range(inside, inside + 40)]
    found = 0
    for number, place in enumerate(places):
        flipped = bytes([content[place] ^ 1 << number % 8])
        file.write_bytes(content[:place] + flipped + content[place + 1 :])
        try:
            (ours, form), (theirs, other) = map(tree_flatten, (checkpoint._read(), expected))
        except FormatError as error:
            found += 1
            assert str(error).endswith(f"got {file}")
            continue
        # Of what lies between the records of the archive.
        assert place not in range(inside, inside + 40) and form == other
        for one, two in zip(ours, theirs, strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
    assert found >= 40
    file.write_bytes(content)
    with pytest.raises(Cut):
        run(graph, tmp_path, Cutting(1))


def test_a_checkpoint_without_a_checksum_goes_on(graph, tmp_path):
    """As of older versions."""
    first = run(graph, tmp_path, epochs=1)
    torch.save(without_checksum(saved(tmp_path)), tmp_path / "checkpoint.pt")
    assert run(graph, tmp_path, Cutting(1), epochs=1).to_json() == first.to_json()


def test_what_cannot_be_saved_is_refused(graph, tmp_path):
    with pytest.raises(ValueError, match="checkpoint needs pagraph's loader, got dgl's own"):
        run(graph, tmp_path, loader="dgl")
    with pytest.raises(ValueError, match="checkpoint must not be given with powersgd"):
        run(graph, tmp_path, grad_compression="powersgd")


class Halved(World):
    """The first of two processes, whose other one says the opposite."""

    def gather(self, value):
        return [value, not value]


def test_all_processes_have_one_or_none(graph, tmp_path):
    with pytest.raises(
        ValueError, match=r"given to all processes or to none, got \[True, False\] by rank"
    ):
        open_checkpoint(tmp_path, make_task(graph, TrainOptions()), TrainOptions(), Halved(size=2))


SETTINGS = (
    "--epochs",
    "6",
    "--hidden",
    "8",
    "--fanout",
    "4,4",
    "--batch-size",
    "15",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    write_graph(community_graph(600, degree=4), path / "1")
    graph = Graph.open(path / "1")
    part = partition_graph(graph, 3, hops=2, method="hash")
    uneven = replace(
        part, parts=torch.where(torch.arange(len(part.parts)) % 5 > 0, 0, part.parts).int()
    )
    write_partition(uneven, path / "3", source=path / "1")
    return path


@pytest.mark.attack
@pytest.mark.parametrize("count", [1, 3])
def test_killed_in_the_middle_of_an_epoch(folder, tmp_path, count):
    """Processes of different machines, as it were: each writes its own file, and one of them is
    lost."""

    def command(name):
        return (
            folder / str(count),
            *SETTINGS,
            "--checkpoint",
            tmp_path / name,
            "--json",
            tmp_path / f"{name}.json",
        )

    def begin(name):
        if count > 1:
            return start(count, *command(name))
        whole = [forked_python(), "-u", "-m", "pagraph", "train", *map(str, command(name))]
        return [subprocess.Popen(whole, env=environment(), stdout=-1, stderr=-1, text=True)]

    for _, errors, code in ended(begin("whole")):
        assert code == 0, errors
    processes = begin("cut")
    for line in processes[0].stdout:
        if line.startswith("epoch 3/"):
            break
    processes[-1].kill()
    ended(processes)
    assert len(saved(tmp_path / "cut")["records"]) in (2, 3, 4)
    (said, errors, code), *_ = ended(begin("cut"))
    assert code == 0, errors
    assert re.search(r"^resuming after epoch [234]/6$", said, re.MULTILINE)
    assert_the_same(saved(tmp_path / "cut"), saved(tmp_path / "whole"))
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("cut", "whole")]
    for name in ("loss", "val_accuracy_by_epoch", "test_accuracy_by_epoch", "settings"):
        assert reports[0][name] == reports[1][name]
