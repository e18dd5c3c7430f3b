"""Sets that are drawn for a graph without masks: the same in every run."""

import json

import pytest
from click.testing import CliRunner

from pagraph import Graph
from pagraph.cli import main
from pagraph.datasets import write_graph
from pagraph.profile import training_seeds
from pagraph.train import TrainOptions
from pagraph.train.hetero import make_hetero_task
from pagraph.train.task import make_task

MASKS = ("train_mask", "val_mask", "test_mask")
DRAWS = r"train_fraction=0\.6 draws the sets, pagraph import --train 0\.6 stores them$"


@pytest.fixture
def bare(graph):
    """A graph of features and labels without masks."""
    for name in MASKS:
        del graph.ndata[name]
    return graph


def sets(task):
    return [getattr(task, name).tolist() for name in ("train", "val", "test")]


@pytest.mark.parametrize("fraction", [0.001, 0.29, 0.6, 0.999])
def test_all_vertices_are_in_one_set(bare, fraction):
    found = sets(make_task(bare, TrainOptions(train_fraction=fraction)))
    assert sorted(sum(found, [])) == list(range(600))
    assert all(found) and all(ids == sorted(ids) for ids in found)
    assert len(found[0]) == min(max(1, int(fraction * 600 + 1e-6)), 598)
    assert 0 <= len(found[1]) - len(found[2]) <= 1


def test_sets_are_the_same_for_every_seed_and_those_of_profile(bare):
    first = sets(make_task(bare, TrainOptions(train_fraction=0.25)))
    assert first == sets(make_task(bare, TrainOptions(train_fraction=0.25, seed=9, model="gcn")))
    assert first[0] == training_seeds(bare, fraction=0.25).tolist()


def test_masks_are_not_read(graph):
    drawn = sets(make_task(graph, TrainOptions(train_fraction=0.25)))
    assert drawn != sets(make_task(graph, TrainOptions()))


@pytest.mark.parametrize("missing", [-1, float("nan")])
def test_only_labelled_vertices_are_drawn(bare, missing):
    labels = bare.ndata["label"]
    labels = labels.float() if missing != missing else labels.clone()
    labels[::2] = missing
    bare.set_field("label", labels)
    task = make_task(bare, TrainOptions(train_fraction=0.5))
    assert sorted(sum(sets(task), [])) == list(range(1, 600, 2))
    assert task.source.ndata["label"][::2].eq(-1).all() and task.num_outputs == 4
    bare.ndata["label"][2:] = missing
    with pytest.raises(ValueError, match="graph must have at least 3 labelled vertices, got 1"):
        make_task(bare, TrainOptions(train_fraction=0.5))


def test_missing_labels_are_taken_where_masks_leave_them_out(graph):
    labels = graph.ndata["label"].float()
    left = ~(graph.ndata["train_mask"] | graph.ndata["val_mask"] | graph.ndata["test_mask"])
    labels[left] = float("nan")
    left[0] = graph.ndata["train_mask"][0] = graph.ndata["val_mask"][0] = False
    graph.ndata["test_mask"][0], labels[0] = False, float("nan")
    want = make_task(graph, TrainOptions())
    graph.set_field("label", labels)
    got = make_task(graph, TrainOptions())
    assert sets(got) == sets(want) and got.num_outputs == want.num_outputs
    for values in (labels + 0.5, labels.nan_to_num(nan=0)):
        graph.set_field("label", values)
        with pytest.raises(ValueError, match="label must be a 1-D field of integers, got torch.fl"):
            make_task(graph, TrainOptions())


def test_several_types(bare):
    types = {("a", "to", "b"): bare.csc, ("b", "of", "a"): bare.csc}
    graph = Graph(types, {"a": 600, "b": 600})
    graph.set_field("feat", bare.ndata["feat"], node_type="a")
    graph.set_field("label", bare.ndata["label"], node_type="b")
    task = make_hetero_task(graph, TrainOptions(train_fraction=0.6))
    assert task.node_type == "b" and len(task.train) == 360
    with pytest.raises(ValueError, match=rf"train_mask for one vertex type .* got \[\]: {DRAWS}"):
        make_hetero_task(graph, TrainOptions())
    graph.set_field("label", bare.ndata["label"], node_type="a")
    with pytest.raises(ValueError, match=r"field label for one vertex type .* got \['a', 'b'\]$"):
        make_hetero_task(graph, TrainOptions(train_fraction=0.6))


def test_the_error_about_masks_says_what_draws_them(bare):
    with pytest.raises(ValueError, match=rf"it lacks {', '.join(MASKS)} and has .*: {DRAWS}"):
        make_task(bare, TrainOptions())


@pytest.mark.parametrize("fraction", [0, -1, 1, 1.5, float("nan")])
def test_fractions_that_are_none(fraction):
    with pytest.raises(ValueError, match=r"train_fraction must be in \(0, 1\), to leave vertices"):
        TrainOptions(train_fraction=fraction)


def test_links_have_sets_of_their_own():
    with pytest.raises(ValueError, match="train_fraction must be given with task 'nodes', got it"):
        TrainOptions(task="links", train_fraction=0.5)


class TestTyped:
    @pytest.fixture
    def folder(self, bare, tmp_path):
        write_graph(bare, tmp_path / "bare")
        return tmp_path / "bare"

    def run(self, *arguments):
        return CliRunner().invoke(main, ["train", *map(str, arguments)])

    @pytest.mark.learning
    def test_a_graph_without_masks_is_trained(self, folder, tmp_path):
        pytest.importorskip("torch_geometric")
        options = [folder, "--layers", "pyg", "--epochs", 1, "--train-fraction", 0.6]
        result = self.run(*options, "--json", tmp_path / "r.json")
        assert result.exit_code == 0, result.output
        assert "360 vertices to train on, 120 to validate, 120 to test" in result.output
        report = json.loads((tmp_path / "r.json").read_text())
        assert report["settings"]["train_fraction"] == 0.6
        options[-1] = 0.5
        saved = [*options, "--checkpoint", tmp_path / "c"]
        assert self.run(*saved).exit_code == 0
        saved[6] = 0.6
        assert "--train-fraction must be 0.5 as in the checkpoint" in self.run(*saved).stderr

    def test_mistakes(self, folder, tmp_path):
        for given, message in (
            ([], "--train-fraction 0.6 draws the sets, pagraph import --train 0.6 stores them"),
            (["--train-fraction", 1], "--train-fraction must be in (0, 1), to leave vertices to"),
            (["--train-fraction", 2], "--train-fraction must be in (0, 1), to leave vertices to"),
            (
                ["--train-fraction", 0.5, "--split", "a_"],
                "--split and --train-fraction must not be given together",
            ),
            (
                ["--train-fraction", 0.5, "--task", "links"],
                "--train-fraction must be given with task 'nodes', got it with 'links'",
            ),
        ):
            result = self.run(folder, *given)
            assert result.exit_code == 2 and message in result.stderr, result.stderr

    def test_a_partition_has_its_sets(self, graph, tmp_path):
        write_graph(graph, tmp_path / "g")
        made = ["partition", tmp_path / "g", tmp_path / "p", "-k", 1, "--method", "hash"]
        assert CliRunner().invoke(main, [*map(str, made)]).exit_code == 0
        result = self.run(tmp_path / "p", "--train-fraction", 0.5)
        assert "--train-fraction must be given when a graph is divided" in result.stderr
