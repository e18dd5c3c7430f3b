"""Training on the parts of a graph, in this process and in several."""

import copy
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from community import community_graph
from fresh_processes import HANGING
from processes import machines, several, torchrun
from timelines import checked, spans

from pagraph import FormatError, Graph
from pagraph.cli.train_run import assignment_lines
from pagraph.datasets import write_graph
from pagraph.partition import Partition, open_partition, partition_graph, write_partition
from pagraph.train import TrainOptions
from pagraph.train.assignment import assign
from pagraph.train.distributed import OtherProcessError, World
from pagraph.train.evaluate import Evaluation, accuracies, predict
from pagraph.train.loop import train
from pagraph.train.models import GAT, GCN, GraphSAGE, framework_of
from pagraph.train.task import make_task

MODELS = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT}
FULL = {
    "fanout": (-1, -1),
    "batch_size": 1000,
    "epochs": 4,
    "hidden": 8,
    "dropout": 0.0,
    "lr": 0.05,
}


def divided(graph, shares, *, evaluated=False, hops=2):
    """A partition with these shares of the training vertices."""
    train_ids = graph.ndata["train_mask"].nonzero().squeeze(1)
    g = torch.Generator().manual_seed(0)
    parts = torch.multinomial(
        torch.tensor(shares), len(train_ids), replacement=True, generator=g
    ).int()
    partition = Partition(graph, train_ids, parts, len(shares), hops, "hash")
    if not evaluated:
        return partition
    others = (graph.ndata["val_mask"] | graph.ndata["test_mask"]).nonzero().squeeze(1)
    owners = torch.randint(len(shares), (len(others),), generator=g, dtype=torch.int32)
    return replace(partition, evaluated=others, evaluation=owners)


@pytest.fixture(scope="module")
def whole():
    """A graph with self-loops, parallel edges, and vertices without in-edges."""
    graph = community_graph(600, degree=4)
    src, dst = graph.csc.indices, graph.csc.destinations()
    keep = dst >= 20
    loops = torch.tensor([0, 0, 3, 21, 21, 500, 599])
    src, dst = torch.cat([src[keep], loops, src[-50:]]), torch.cat([dst[keep], loops, dst[-50:]])
    return Graph.from_coo(src, dst, 600, ndata=graph.ndata)


@pytest.fixture(scope="module")
def folder(whole, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts")
    write_graph(whole, path / "graph")
    graph = Graph.open(path / "graph")
    write_partition(divided(graph, [1.0]), path / "one", source=path / "graph")
    write_partition(divided(graph, [0.8, 0.2]), path / "uneven", source=path / "graph")
    write_partition(divided(graph, [0.5, 0.5], evaluated=True), path / "evaluated")
    write_partition(
        divided(graph, [0.4, 0.3, 0.2, 0.1]),
        path / "four",
        source=path / "graph",
        features="reference",
    )
    write_partition(divided(graph, [0.5, 0.5]), path / "lonely")
    return path


class TestInOneProcess:
    @pytest.mark.parametrize("model", MODELS)
    def test_a_part_predicts_for_its_own_what_the_whole_graph_does(self, whole, folder, model):
        options = TrainOptions(model=model, device="cpu", fanout=(5, 5))
        task = make_task(whole, options)
        torch.manual_seed(1)
        net = MODELS[model]([8, 6, 4], framework_of("pyg"), dropout=0.5, heads=2)
        everything = predict(net, task.evaluation())
        evaluated = []
        for index in range(2):
            part = open_partition(folder / "evaluated", index)
            work = assign(folder / "evaluated", options, world=Pretended(rank=index, size=2))
            assert work.evaluation.is_part
            nodes = torch.cat([work.task.val, work.task.test])
            got = predict(net, work.evaluation, ids=nodes)
            torch.testing.assert_close(
                got, everything[part.global_ids[nodes]], rtol=1e-4, atol=1e-5
            )
            evaluated += part.global_ids[nodes].tolist()
        assert sorted(evaluated) == sorted(torch.cat([task.val, task.test]).tolist())

    @pytest.mark.every
    @pytest.mark.parametrize("layers", ["dgl", "pyg"])
    @pytest.mark.parametrize("model", ["gcn", "sage"])
    def test_one_part_trains_as_the_whole_graph(self, whole, folder, model, layers):
        options = TrainOptions(model=model, layers=layers, device="cpu", **FULL)
        work = assign(folder / "one", options)
        result = train(work.task, options, evaluation=work.evaluation)
        options = replace(options, layers="dgl")
        same_run(result.to_json(), train(make_task(whole, options), options).to_json())

    def test_what_is_wrong_is_said_before_training(self, folder, tmp_path):
        options = TrainOptions(device="cpu")
        with pytest.raises(
            ValueError,
            match=r"must equal the 2 parts of .*, got 1: torchrun --nproc_per_node=2 -m",
        ):
            assign(folder / "uneven", options)
        with pytest.raises(
            ValueError, match=r"fanout must be no longer than the hops of the parts, 2, got \[3"
        ):
            assign(folder / "one", replace(options, fanout=(3, 3, 3)))
        with pytest.raises(
            ValueError, match="split must be chosen when a graph is divided, got 'pub_'"
        ):
            assign(folder / "one", options, split="pub_")
        with pytest.raises(
            ValueError, match="folder must hold a partition for 3 processes, got the graph folder"
        ):
            assign(folder / "graph", options, world=Pretended(size=3))
        with pytest.raises(ValueError, match="source must be given for the parts of a partition"):
            assign(folder / "graph", options, source=folder / "graph")

    def test_another_place_of_the_graph_is_used_or_refused(self, folder, tmp_path):
        options = TrainOptions(device="cpu", fanout=(5, 5))
        shutil.copytree(folder / "graph", tmp_path / "moved")
        far = copied_without_source(folder / "uneven", tmp_path / "far")
        world = Pretended(size=2)
        work = assign(far, options, source=tmp_path / "moved", world=world)
        assert (work.sourceless, work.evaluated_on) == ((), "source")
        assert work.evaluation.graph.num_nodes == 600
        for wrong, rule in ((tmp_path, "no manifest.json there"), (folder / "one", "SHA-256")):
            with pytest.raises(FormatError, match=rule):
                assign(far, options, source=wrong, world=world)

    @pytest.mark.parametrize("reached", [(), (0,)])
    def test_without_the_graph_all_evaluate_on_their_parts(self, folder, tmp_path, reached):
        """Also where only some of the machines lack it: its rows would be shared among all."""
        boards, barrier = [None] * 2, threading.Barrier(2, timeout=HANGING)
        own = copied_without_source(folder / "uneven", tmp_path / "own")
        folders = [folder / "uneven" if rank in reached else own for rank in range(2)]
        options = TrainOptions(device="cpu", fanout=(5, 5))

        def open_own(rank):
            world = InAThread(rank, 2, boards=boards, barrier=barrier)
            return assign(folders[rank], options, world=world)

        with ThreadPoolExecutor(2) as threads:
            works = list(threads.map(open_own, range(2)))
        evaluated = []
        for work in works:
            assert work.sourceless == tuple(set(range(2)) - set(reached))
            assert work.evaluated_on == "parts"
            part = work.part
            assert torch.equal(work.task.val, part.val)
            evaluated += part.global_ids[torch.cat([part.val, part.test])].tolist()
            said = assignment_lines(own, work)
            assert "evaluated on the parts" in said[0]
            ranks = ", ".join(map(str, work.sourceless))
            assert said[-1].startswith(f"rank {ranks} does not have the graph that was divided")
            assert (
                f"the {sum(part.manifest.outside.values()):,} vertices outside of all parts"
                in said[-1]
            )
        assert len(evaluated) == len(set(evaluated)) > 0

    def test_a_part_without_training_vertices_is_refused_by_all(self, folder, tmp_path):
        graph = Graph.open(folder / "graph")
        idle = replace(
            divided(graph, [0.5, 0.5]),
            parts=torch.zeros(int(graph.ndata["train_mask"].sum()), dtype=torch.int32),
        )
        write_partition(idle, tmp_path / "idle", source=folder / "graph")
        for rank in range(2):
            with pytest.raises((ValueError, OtherProcessError)) as caught:
                assign(
                    tmp_path / "idle",
                    TrainOptions(device="cpu"),
                    world=Pretended(rank=rank, size=2),
                )
            error = caught.value if rank == 0 else caught.value.__cause__
            assert re.fullmatch(
                r"parts must have at least 1 training vertex each, got \[\d+, 0\]", str(error)
            )

    def test_machines_that_were_given_different_options_do_not_wait_for_each_other(self, folder):
        class Another(Pretended):
            def gather(self, value):
                return (
                    [value, replace(value, batch_size=7, cache="0")]
                    if isinstance(value, TrainOptions)
                    else [value] * 2
                )

        with pytest.raises(
            ValueError,
            match=r"batch_size must be the same in all processes, got \[1000, 7\] by rank",
        ):
            assign(folder / "uneven", TrainOptions(device="cpu"), world=Another(size=2))

    def test_accuracies_count_over_all_vertices(self, whole):
        task = make_task(whole, TrainOptions())
        net = GraphSAGE([8, 4], framework_of("dgl"), dropout=0.0)
        val, test = accuracies(net, task.evaluation())
        right = predict(net, task.evaluation()).argmax(1) == task.graph.ndata["label"]
        assert val == float(right[task.val].double().mean())
        assert test == float(right[task.test].double().mean())

    @pytest.mark.parametrize("size", [2, 3, 7])
    def test_several_processes_count_each_vertex_once_and_by_its_own_score(self, whole, size):
        """Every vertex counts, those at the ends of the shares too; which ones are right is chosen
        at random."""
        torch.manual_seed(1)
        net = GraphSAGE([8, 6, 4], framework_of("dgl"), dropout=0.0)
        evaluation = Evaluation(whole, torch.arange(0, 600, 2), torch.arange(599, 0, -2))
        right = torch.rand(600, generator=torch.Generator().manual_seed(3)) < 0.4
        best = predict(net, evaluation).argmax(1)
        labels = torch.where(right, best, (best + 1) % 4)
        graph = Graph(whole.csc, ndata={**whole.ndata, "label": labels})
        evaluation = replace(evaluation, graph=graph)
        boards, barrier = [None] * size, threading.Barrier(size, timeout=HANGING)
        worlds = [InAThread(rank, size, boards=boards, barrier=barrier) for rank in range(size)]

        def count(world):
            try:
                return accuracies(copy.deepcopy(net), evaluation, world=world)
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(size) as threads:
            got = list(threads.map(count, worlds))
        assert (
            got
            == [
                tuple(
                    float(right[ids].double().mean()) for ids in (evaluation.val, evaluation.test)
                )
            ]
            * size
        )


def copied_without_source(parts, out):
    """A copy of parts as on a machine that has neither of the places that their manifest names."""
    shutil.copytree(parts, out)
    value = json.loads((out / "manifest.json").read_text())
    value["source"] |= {"path": "nowhere", "absolute": "/nowhere"}
    del value["checksum"]
    (out / "manifest.json").write_text(json.dumps(value))
    return out


class Pretended(World):
    """One of several processes, whose others always agree."""

    def gather(self, value):
        return [value] * self.size


@dataclass(frozen=True)
class InAThread(World):
    """One of several processes, each of them a thread."""

    boards: list = None
    barrier: threading.Barrier = None

    def gather(self, value):
        self.boards[self.rank] = value
        self.barrier.wait()
        values = list(self.boards)
        self.barrier.wait()
        return values

    def complete(self, rows):
        for rank, others in enumerate(self.gather(rows)):
            share = replace(self, rank=rank).share(len(rows))
            rows[share] = others[share]
        self.barrier.wait()


def same_run(got, want):
    """Equal losses and accuracies, epoch by epoch, but for the order of sums."""
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-3)
    for name in ("val_accuracy_by_epoch", "test_accuracy_by_epoch"):
        assert got[name] == pytest.approx(want[name], abs=0.01)


RUNS = {
    "gcn": {"folder": "uneven", "model": "gcn", **FULL},
    "sage": {"folder": "uneven", "model": "sage", **FULL},
    "gat": {"folder": "uneven", "model": "gat", **FULL},
    "own": {"folder": "evaluated", "model": "gcn", **FULL},
    "fp16": {"folder": "uneven", "model": "gcn", "grad_compression": "fp16", **FULL},
    "powersgd": {
        "folder": "uneven",
        "grad_compression": "powersgd",
        **FULL,
        "hidden": 64,
        "epochs": 25,
    },
    "plain": {"folder": "uneven", **FULL, "hidden": 64, "epochs": 25},
    "dgl": {"folder": "uneven", "model": "sage", "loader": "dgl", **FULL},
    "pyg": {"folder": "uneven", "model": "gcn", "layers": "pyg", **FULL},
    "sampled": {
        "folder": "uneven",
        "fanout": (5, 5),
        "batch_size": 50,
        "epochs": 12,
        "hidden": 16,
        "lr": 0.01,
    },
}


@pytest.fixture(scope="module")
def reports(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "reports.json"
    for _, errors, code in several(2, "train_all", folder, out, json.dumps([*RUNS.values()])):
        assert code == 0, errors
    return dict(zip(RUNS, json.loads(out.read_text()), strict=True))


@pytest.mark.processes
class TestInTwoProcesses:
    @pytest.mark.parametrize("name", ["gcn", "sage", "gat", "own", "dgl", "pyg"])
    def test_whole_batches_train_exactly_as_one_process(self, whole, reports, name):
        run = {k: v for k, v in RUNS[name].items() if k != "folder"}
        options = TrainOptions(device="cpu", **{**run, "loader": "pagraph", "layers": "dgl"})
        same_run(reports[name], train(make_task(whole, options), options).to_json())

    def test_half_precision_gradients_change_little(self, reports):
        assert reports["fp16"]["loss"] == pytest.approx(reports["gcn"]["loss"], rel=0.01)
        assert reports["fp16"]["loss"] != reports["gcn"]["loss"]

    def test_powersgd_begins_after_its_first_steps_and_learns(self, reports):
        ours, plain = reports["powersgd"]["loss"], reports["plain"]["loss"]
        assert ours[:10] == plain[:10]
        assert ours != plain
        assert ours[-1] < 1.2 * plain[-1] < 0.5 * plain[0]

    def test_all_make_the_steps_of_the_largest_part(self, folder, reports):
        sizes = open_partition(folder / "uneven", 0).manifest.train_per_part
        assert sizes[0] > 3 * sizes[1]
        assert [rank["train"] for rank in reports["sampled"]["ranks"]] == list(sizes)
        assert reports["sampled"]["batches"] == [12 * -(-max(sizes) // 50)] * 2

    def test_sampled_batches_reach_the_accuracy_of_one_process(self, whole, reports):
        run = {k: v for k, v in RUNS["sampled"].items() if k != "folder"}
        options = TrainOptions(device="cpu", **run)
        alone = train(make_task(whole, options), options)
        assert reports["sampled"]["test_accuracy"] == pytest.approx(alone.test_accuracy, abs=0.1)


@pytest.mark.processes
class TestTheCommand:
    QUICK = (
        "--epochs",
        "3",
        "--hidden",
        "8",
        "--fanout",
        "3,3",
        "--batch-size",
        "30",
        "--device",
        "cpu",
    )

    @pytest.mark.parametrize("layers", ["dgl", "pyg"])
    def test_four_processes_by_torchrun(self, folder, tmp_path, layers):
        more = ("--model", "gcn", "--json", tmp_path / "r.json", "--trace", tmp_path / "t.json.gz")
        done = torchrun(4, folder / "four", *self.QUICK, *more, "--layers", layers)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        # Of one process: two on what is trained on, one of the run, one each epoch, a summary.
        assert len(lines) == 7
        assert lines[0].startswith(f"{folder / 'four'}: 4 parts of 2 hops, ")
        assert lines[0].endswith("evaluated on the whole graph")
        assert lines[2] == f"gcn with {layers}'s layers and pagraph's loader on cpu, 4 processes"
        number = r"[\d.]+"
        spread = (
            rf"loading {number} \({number} to {number}\), computing {number} \({number} to "
            rf"{number}\)"
        )
        assert all(re.search(spread, line) for line in lines[3:6])
        report = json.loads((tmp_path / "r.json").read_text())
        assert [rank["part"] for rank in report["ranks"]] == [0, 1, 2, 3]
        assert all(len(rank["loading_seconds"]) == 3 for rank in report["ranks"])
        assert report["partition"] == {
            "method": "hash",
            "parts": 4,
            "hops": 2,
            "evaluation": "source",
        }
        for rank in range(4):
            assert len(spans(checked(tmp_path / f"t.rank{rank}.json.gz"), "epoch 2")) >= 1

    def test_a_world_of_another_size_is_one_error(self, folder):
        done = torchrun(2, folder / "four", *self.QUICK)
        assert done.returncode == 1  # torchrun's own
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert errors == [
            f"Error: the number of processes must equal the 4 parts of {folder / 'four'}, got 2: "
            f"torchrun --nproc_per_node=4 -m pagraph train {folder / 'four'}"
        ]
        assert re.search(r"exitcode *: 2 ", done.stderr)
        assert done.stdout == ""
        # torchrun's table, below its own traceback, ends with the line.
        *_, last, border = done.stderr.rstrip().splitlines()
        assert last.strip().startswith("traceback : Error: ")
        assert last.endswith(errors[0].removeprefix("Error: "))
        assert set(border) == {"="}

    def test_machines_that_differ_say_so_on_each(self, folder):
        parts = folder / "uneven"
        more = ("--timeout", "30", "--batch-size")
        for _, errors, code in machines(
            (parts, *self.QUICK, *more, "20"), (parts, *self.QUICK, *more, "40")
        ):
            assert errors.splitlines() == [
                "Error: batch_size must be the same in all processes, got [20, 40] by rank"
            ]
            assert code == 2

    def test_machines_with_other_parts_say_so_on_each(self, folder, tmp_path):
        graph = Graph.open(folder / "graph")
        other = partition_graph(graph, 2, hops=2, method="pagraph")
        write_partition(other, tmp_path / "other", source=folder / "graph")
        for _, errors, code in machines(
            (folder / "uneven", *self.QUICK), (tmp_path / "other", *self.QUICK)
        ):
            assert errors.splitlines() == [
                "Error: processes must open parts of the same partition, got a different one than "
                "rank 0's on rank 1: copy the whole folder again"
            ]
            assert code == 2

    def test_one_machine_hears_what_failed_on_another(self, folder):
        four = folder / "four"
        (_, here, _), (_, there, _) = machines(
            (folder / "uneven", *self.QUICK), (four, *self.QUICK)
        )
        reason = (
            f"the number of processes must equal the 4 parts of {four}, got 2: torchrun "
            f"--nproc_per_node=4 -m pagraph train {four}\n"
        )
        assert there == f"Error: {reason}"
        assert here == f"Error: rank 0: rank 1 failed: {reason}"

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_process_that_is_killed_is_started_again(self, folder, tmp_path, rank):
        """At the first attempt: torchrun's store still has what the processes before wrote."""
        settings = json.dumps({"rank": rank})
        done = torchrun(
            2, "killed_once", folder / "uneven", tmp_path / "saved", settings, restarts=1
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"(rank \d goes on after \d\n)+", done.stdout)

    def test_a_process_that_is_killed_ends_the_others(self, folder):
        (said, errors, code), (_, _, killed) = several(2, "die", folder / "uneven", "-")
        assert killed == -9
        assert code == 0, errors
        assert said.startswith("rank 0: another process ended or did not answer: ")

    @pytest.mark.skipif(
        not Path("/proc/self/task").exists(), reason="needs Linux's list of threads"
    )
    def test_a_model_that_is_freed_last_joins_no_threads(self):
        """Torch would join gloo's with the GIL held, for which one of them may wait."""
        ((said, errors, code),) = several(1, "outlive", "-", "-")
        assert code == 0, errors
        before, after = map(int, said.split())
        assert before == after > 0
