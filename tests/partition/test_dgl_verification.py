"""A folder in DGL's format is proven right, and every kind of damage is found."""

import json
import shutil

import pytest
import torch

from pagraph import FormatError, Graph
from pagraph.datasets import citation, sbm, write_graph
from pagraph.datasets.dgl_file import load_saved_graph, load_saved_tensors
from pagraph.partition import partition_graph, place_vertices, verify_dgl, write_dgl

pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
dgl = pytest.importorskip("dgl")


@pytest.fixture(scope="module", params=["one type", "several types"])
def made(request, tmp_path_factory):
    """A source, and placed parts of it."""
    path = tmp_path_factory.mktemp("made")
    whole = sbm(300, num_features=4, seed=0)
    if request.param == "several types":
        whole = citation(150, num_features=4, num_author_features=3)
    write_graph(whole, path / "graph")
    graph = Graph.open(path / "graph")
    partition = place_vertices(partition_graph(graph, 3, hops=2))
    write_dgl(partition, path / "parts", source=path / "graph", halo_hops=2)
    return path, partition


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made[0] / "parts", tmp_path / "parts")
    return tmp_path / "parts"


def found(folder, made):
    return [str(finding) for finding in verify_dgl(folder, source=made[0] / "graph").findings]


def rewritten(file, change):
    """Save the tensors of a file again, with ``change`` applied to them."""
    tensors = load_saved_tensors(file)
    change(tensors)
    file.unlink()
    dgl.data.utils.save_tensors(str(file), tensors)


def regraphed(file, change):
    """Save the graph of a file again, with ``change`` applied to it."""
    (graph,), _ = dgl.load_graphs(str(file))
    graph = change(graph) or graph
    file.unlink()
    dgl.save_graphs(str(file), [graph])


def added(fields, name):
    fields[name] = fields[name] + 1


class TestRight:
    def test_what_was_written(self, made):
        path, partition = made
        calls = []
        result = verify_dgl(path / "parts", progress=lambda done, all_: calls.append((done, all_)))
        assert result.ok and result.num_parts == 3 and result.train == len(partition.train)
        assert calls == [(1, 3), (2, 3), (3, 3)]
        graphs = [load_saved_graph(path / "parts" / f"part{i}" / "graph.dgl") for i in range(3)]
        assert result.vertices == sum(graph.num_nodes for graph in graphs)
        assert result.edges == sum(graph.num_edges for graph in graphs)

    def test_without_a_placement_and_a_source(self, tmp_path):
        graph = sbm(200, num_features=2, seed=0)
        write_dgl(partition_graph(graph, 2, method="hash"), tmp_path / "parts")
        with pytest.raises(ValueError, match="source must be given"):
            verify_dgl(tmp_path / "parts")
        write_graph(graph, tmp_path / "graph")
        assert verify_dgl(tmp_path / "parts", source=tmp_path / "graph").ok

    def test_moved_together(self, made, tmp_path):
        for name in ("graph", "parts"):
            shutil.copytree(made[0] / name, tmp_path / "far" / name)
        assert verify_dgl(tmp_path / "far" / "parts").ok

    def test_tensors_are_read_as_dgl_reads_them(self, made):
        file = made[0] / "parts" / "part0" / "node_feat.dgl"
        want = dgl.data.utils.load_tensors(str(file))
        got = load_saved_tensors(file)
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)


class TestDamage:
    def test_a_vertex_in_two_parts_or_in_none(self, made, folder):
        name = f"{made[1].train_type}/orig_id"
        taken = load_saved_tensors(folder / "part0" / "node_feat.dgl")[name][0]

        def twice(tensors):
            tensors[name] = torch.cat([taken[None], tensors[name]]).unique()

        rewritten(folder / "part1" / "node_feat.dgl", twice)
        assert (
            f"vertex {int(taken)} of the source must be in one part, got 0"
            in found(folder, made)[0]
        )

    def test_a_vertex_in_none(self, made, folder):
        name = f"{made[1].train_type}/orig_id"

        def less(tensors):
            tensors[name] = tensors[name][1:]

        rewritten(folder / "part1" / "node_feat.dgl", less)
        assert "of the source must be owned by a part (1 are not)" in found(folder, made)[0]

    def test_ids_out_of_range_or_order(self, made, folder):
        name = f"{made[1].train_type}/orig_id"
        rewritten(folder / "part1" / "node_feat.dgl", lambda t: t[name].add_(10_000))
        assert (
            f"{name} must be in [0, ".replace(f"{made[1].train_type}/", "")
            in found(folder, made)[0]
        )

    def test_a_field(self, made, folder):
        name = f"{made[1].train_type}/feat"
        rewritten(folder / "part2" / "node_feat.dgl", lambda t: t[name][3].add_(1))
        assert found(folder, made) == [f"part 2: node_feat.dgl: {name} must be that of the source"]

    def test_a_field_that_is_missing(self, made, folder):
        rewritten(folder / "part2" / "edge_feat.dgl", dict.popitem)
        assert "part 2: edge_feat.dgl: must hold " in found(folder, made)[0]

    def test_training_vertices(self, made, folder):
        name = f"{made[1].train_type}/train_mask"
        rewritten(folder / "part1" / "node_feat.dgl", lambda t: t[name].fill_(0))
        messages = found(folder, made)
        assert "the training vertices must be those that were divided" in messages[0]

    def test_an_edge(self, made, folder):
        def other(graph):
            sources, targets = graph.edges(order="eid")
            sources = sources.clone()
            sources[0] = (sources[0] + 1) % graph.num_nodes()
            changed = dgl.graph((sources, targets), num_nodes=graph.num_nodes())
            changed.ndata.update(graph.ndata)
            changed.edata.update(graph.edata)
            return changed

        regraphed(folder / "part0" / "graph.dgl", other)
        assert any("of the in-edges must be those of the source" in m for m in found(folder, made))

    @pytest.mark.parametrize("name", ["_ID", "inner_node", "part_id"])
    def test_what_dgl_knows_of_vertices(self, made, folder, name):
        regraphed(folder / "part0" / "graph.dgl", lambda g: added(g.ndata, name))
        assert found(folder, made) == [
            f"part 0: graph.dgl, vertices: {name} must be that of the source"
        ]

    @pytest.mark.parametrize("name", ["_ID", "inner_edge"])
    def test_what_dgl_knows_of_edges(self, made, folder, name):
        regraphed(folder / "part0" / "graph.dgl", lambda g: added(g.edata, name))
        assert found(folder, made) == [
            f"part 0: graph.dgl, edges: {name} must be that of the source"
        ]

    def test_the_ranges_of_a_part(self, made, folder):
        file = folder / "graph.json"
        value = json.loads(file.read_text())
        value["node_map"][made[1].train_type][0][1] += 1
        value["part-1"]["part_graph"] = "part0/graph.dgl"
        file.write_text(json.dumps(value))
        assert found(folder, made) == [
            "graph.json: node_map must be that of these parts",
            "part 1: graph.json: part-1 must name the files of that part",
        ]

    def test_a_folder_that_dgl_converted_for_graphbolt(self, made, folder):
        """Its converter adds a file to each part, and two entries at the end (DGL 2.1)."""
        file = folder / "graph.json"
        value = json.loads(file.read_text())
        value |= {"node_map_dtype": "int64", "edge_map_dtype": "int64"}
        for part in range(value["num_parts"]):
            name = f"part{part}/fused_csc_sampling_graph.pt"
            value[f"part-{part}"]["part_graph_graphbolt"] = name
        file.write_text(json.dumps(value))
        assert found(folder, made) == []
        value["part-1"]["part_graph_graphbolt"] = "part0/fused_csc_sampling_graph.pt"
        file.write_text(json.dumps(value))
        assert found(folder, made) == [
            "part 1: graph.json: part-1 must name the files of that part"
        ]

    @pytest.mark.every
    @pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl"])
    def test_files_that_are_cut_or_gone(self, made, folder, name):
        file = folder / "part1" / name
        file.write_bytes(file.read_bytes()[:300])
        assert "part 1: " in found(folder, made)[0] and "too early" in found(folder, made)[0]
        file.unlink()
        assert f"file must exist, got {file}" in found(folder, made)[0]


class TestRefused:
    @pytest.mark.filterwarnings("ignore::ResourceWarning")  # DGL leaves a file open
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_parts_of_dgls_own(self, tmp_path):
        graph = sbm(200, seed=0)
        theirs = dgl.graph((graph.csc.indices.long(), graph.csc.destinations().long()))
        dgl.distributed.partition_graph(
            theirs, "theirs", 2, str(tmp_path / "theirs"), part_method="random"
        )
        with pytest.raises(FormatError, match="must be written by pagraph, .* method 'random'"):
            verify_dgl(tmp_path / "theirs")

    def test_a_folder_without_parts(self, tmp_path):
        with pytest.raises(FormatError, match="must hold a partition in DGL's format, got no JSON"):
            verify_dgl(tmp_path)

    def test_a_graph_without_the_type(self, made, tmp_path):
        file = tmp_path / "parts" / "graph.json"
        shutil.copytree(made[0] / "parts", tmp_path / "parts")
        value = json.loads(file.read_text())
        value["pagraph"]["train_type"] = "no such"
        file.write_text(json.dumps(value))
        with pytest.raises(FormatError, match="'no such' must be a vertex type of"):
            verify_dgl(tmp_path / "parts", source=made[0] / "graph")
