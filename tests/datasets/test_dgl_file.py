"""Files of ``dgl.save_graphs``: as DGL reads them where they are sound, one error where they are
not."""

import itertools
import os
import random
import struct
import subprocess
import sys

import pytest
import torch
from fresh_processes import bare_python

from pagraph import FormatError, Graph
from pagraph.datasets import read_graph
from pagraph.datasets.dgl_file import load_saved_graph

LAYOUTS = ["coo", "csr", "csc"]
SAVED = [list(some) for count in (1, 2, 3) for some in itertools.combinations(LAYOUTS, count)]


@pytest.fixture
def dgl():
    pytest.importorskip("pagraph.dgl")
    import dgl

    return dgl


def heterograph(dgl, dtype=torch.int64, seed=0):
    torch.manual_seed(seed)

    def ends(num_src, num_dst, count):
        return torch.randint(num_src, (count,), dtype=dtype), torch.randint(
            num_dst, (count,), dtype=dtype
        )

    edges = {
        ("a", "x", "b"): ends(9, 5, 30),
        ("b", "y", "a"): ends(5, 9, 20),
        ("a", "x", "a"): ends(9, 9, 12),
    }
    graph = dgl.heterograph(edges, num_nodes_dict={"a": 9, "b": 5}, idtype=dtype)
    graph.nodes["a"].data["f"] = torch.randn(9, 3)
    graph.nodes["a"].data["half"] = torch.randn(9).half()
    graph.edges["y"].data["w"] = torch.arange(20, dtype=torch.int16)
    return graph


def in_layouts(graph, layouts):
    graph = graph.formats(layouts)
    graph.create_formats_()
    return graph


def assert_same(got, want):
    assert got.node_types == want.node_types and got.edge_types == want.edge_types
    assert got.num_nodes_by_type == want.num_nodes_by_type
    for etype in got.edge_types:
        ours, theirs = got.csc_of(etype), want.csc_of(etype)
        assert torch.equal(ours.indptr, theirs.indptr) and torch.equal(ours.indices, theirs.indices)
        assert (ours.edge_ids is None) == (theirs.edge_ids is None)
        assert ours.edge_ids is None or torch.equal(ours.edge_ids, theirs.edge_ids)
        assert_same_fields(got.edge_fields(etype), want.edge_fields(etype))
    for ntype in got.node_types:
        assert_same_fields(got.node_fields(ntype), want.node_fields(ntype))


def assert_same_fields(ours, theirs):
    assert set(ours) == set(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])


@pytest.mark.every
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layouts", SAVED, ids="+".join)
def test_the_same_graph_as_by_dgl(dgl, tmp_path, layouts, dtype):
    """Also the same order of neighbours, which a seed's draws depend on."""
    path = str(tmp_path / "g.bin")
    graphs = [heterograph(dgl, dtype, seed=seed) for seed in range(3)]
    dgl.save_graphs(
        path,
        [in_layouts(graph, layouts) for graph in graphs],
        {"y": torch.zeros(3)},
        formats=layouts,
    )
    loaded, _ = dgl.load_graphs(path)
    for index, graph in enumerate(loaded):
        assert_same(load_saved_graph(path, index), Graph.from_dgl(graph))


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_restricted_formats(dgl, tmp_path, layouts):
    path = str(tmp_path / "g.bin")
    dgl.save_graphs(path, [heterograph(dgl).formats(layouts)])
    assert_same(load_saved_graph(path), Graph.from_dgl(dgl.load_graphs(path)[0][0]))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int64]
)
def test_dtypes_and_empty_fields(dgl, tmp_path, dtype):
    graph = dgl.graph((torch.arange(3), torch.arange(3)))
    graph.ndata["x"] = torch.arange(12).reshape(3, 2, 2).to(dtype)
    graph.ndata["none"] = torch.empty(3, 0, dtype=dtype)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    fields = load_saved_graph(tmp_path / "g.bin").ndata
    assert_same_fields(fields, {name: graph.ndata[name] for name in ("x", "none")})


def test_no_edges_and_no_graph_of_that_number(dgl, tmp_path):
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl.graph(([], []), num_nodes=4)])
    assert (load_saved_graph(path).num_nodes, load_saved_graph(path).num_edges) == (4, 0)
    for index in (1, -1):
        with pytest.raises(FormatError, match=rf"g\.bin must hold graph {index}, it holds 1"):
            load_saved_graph(path, index)


def array(values, dtype="q", code=(0, 64)):
    """An array as DGL writes it."""
    content = struct.pack(f"<{len(values)}{dtype}", *values)
    lead = struct.pack(
        "<QQiiiBBHqq", 0xDD5E40F096B4A13F, 0, 1, 0, 1, *code, 1, len(values), len(content)
    )
    return lead + content


def old_file(indptr, indices, ids, feat):
    """A file of DGL before 0.5."""
    named = struct.pack("<Q", 1) + struct.pack("<Q", 1) + b"h" + array(feat, "f", (2, 32))
    graph = array(indptr) + array(indices) + array(ids) + named + struct.pack("<Q", 0)
    lists = b"".join(
        struct.pack("<Qq", 1, number) for number in (4096 + 64, len(indptr) - 1, len(indices))
    )
    head = struct.pack("<QQQ", 0xDD2E4FF046B4A13F, 1, 1).ljust(4096, b"\0")
    return head + struct.pack("<Q", 1) + lists + struct.pack("<Q", 0) + graph


def test_files_of_dgl_before_0_5(dgl, tmp_path):
    path = tmp_path / "g.bin"
    path.write_bytes(old_file([0, 1, 3, 3], [2, 0, 1], [1, 2, 0], [1.0, 2.0, 3.0]))
    with pytest.warns(dgl.base.DGLWarning, match="old version"):
        loaded = dgl.load_graphs(str(path))[0][0]
    assert_same(load_saved_graph(path), Graph.from_dgl(loaded))
    path.write_bytes(old_file([0, 1, 3, 3], [2, 0, 3], [1, 2, 0], [1.0, 2.0, 3.0]))
    with pytest.raises(
        FormatError,
        match=r"g\.bin must hold a valid DGL graph: indices must be in \[0, 3\), got 3",
    ):
        load_saved_graph(path)


SRC, DST = [3, 1, 4, 1, 5, 2, 2, 0], [2, 6, 5, 3, 5, 2, 2, 6]
WRONG = [9, -1, 2**31, 2**32 + 5, 2**62, -(2**62)]


def save(dgl, path, layout, dtype=torch.int64):
    graph = dgl.graph((torch.tensor(SRC, dtype=dtype), torch.tensor(DST, dtype=dtype)), num_nodes=7)
    dgl.save_graphs(str(path), [in_layouts(graph, [layout])])
    tensors = in_layouts(graph, [layout]).adj_tensors(layout)
    return [each.numpy().tobytes() for each in tensors], dtype.itemsize


def change(path, before, after):
    content = path.read_bytes()
    assert content.count(before) == 1 and len(before) == len(after)
    path.write_bytes(content.replace(before, after))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_id_that_is_changed(dgl, tmp_path, layout, dtype):
    """Sources, destinations, bounds and edge ids, each out of range in one place."""
    path = tmp_path / "g.bin"
    arrays, width = save(dgl, path, layout, dtype)
    whole = path.read_bytes()
    for content, wrong, place in itertools.product(arrays, WRONG, (0, -1)):
        if not -(2 ** (8 * width - 1)) <= wrong < 2 ** (8 * width - 1):
            continue
        begin = place % (len(content) // width) * width
        changed = (
            content[:begin]
            + wrong.to_bytes(width, "little", signed=True)
            + content[begin + width :]
        )
        path.write_bytes(whole)
        change(path, content, changed)
        with pytest.raises(
            FormatError, match=r"g\.bin must hold a valid DGL graph: .* (must|got) "
        ):
            load_saved_graph(path)


@pytest.mark.parametrize(
    ("layout", "which", "values"),
    [
        ("csc", 0, [0, 0, 0, 3, 2, 2, 4, 8]),  # decreases
        ("csc", 0, [0, 0, 0, 3, 4, 4, 6, 7]),  # ends too early
        ("csc", 2, [0, 0, 6, 3, 2, 4, 1, 7]),  # an edge twice
        ("csr", 2, [7, 1, 3, 5, 6, 6, 2, 4]),
    ],
)
def test_rows_and_edge_ids_that_do_not_fit(dgl, tmp_path, layout, which, values):
    path = tmp_path / "g.bin"
    arrays, _ = save(dgl, path, layout)
    change(path, arrays[which], struct.pack(f"<{len(values)}q", *values))
    with pytest.raises(
        FormatError, match=r"g\.bin must hold a valid DGL graph: (indptr|edge ids) must"
    ):
        read_graph(path)


def test_layouts_that_disagree(dgl, tmp_path):
    path = tmp_path / "g.bin"
    graph = in_layouts(
        dgl.graph((torch.tensor(SRC), torch.tensor(DST)), num_nodes=7), ["coo", "csc"]
    )
    dgl.save_graphs(str(path), [graph], formats=["coo", "csc"])
    assert load_saved_graph(path).num_edges == 8
    change(path, struct.pack("<8q", *SRC), struct.pack("<8q", 6, *SRC[1:]))
    with pytest.raises(FormatError, match="edges must be the same in all layouts, got others"):
        load_saved_graph(path)


@pytest.mark.parametrize("count", [2**62, 2**40, -1, 6, 0])
def test_numbers_of_vertices(dgl, tmp_path, count):
    """Three places say how many there are."""
    path = tmp_path / "g.bin"
    save(dgl, path, "coo")
    whole = path.read_bytes()
    before, after = struct.pack("<QQ", 7, 7), struct.pack("<qq", count, count)
    path.write_bytes(whole.replace(before, after))
    with pytest.raises(FormatError, match=r"g\.bin must hold a valid DGL graph"):
        load_saved_graph(path)
    numbers = struct.pack("<QQ", 1, 7)  # a list of one
    path.write_bytes(whole.replace(before, after).replace(numbers, struct.pack("<Qq", 1, count)))
    with pytest.raises(
        FormatError,
        match=r"g\.bin must (hold a valid DGL graph|have no more vertices than fit into memory)",
    ):
        load_saved_graph(path)


@pytest.mark.parametrize(
    "shape", [(2**32, 2**32), (2**63 - 1, 2), (-7, -3), (8, 3), (21, 1), (3, 7)]
)
def test_shapes_of_fields(dgl, tmp_path, shape):
    path = tmp_path / "g.bin"
    graph = dgl.graph((torch.tensor(SRC), torch.tensor(DST)), num_nodes=7)
    graph.ndata["x"] = torch.zeros(7, 3)
    dgl.save_graphs(str(path), [graph])
    change(path, struct.pack("<qq", 7, 3), struct.pack("<qq", *shape))
    with pytest.raises(
        FormatError,
        match=r"g\.bin must (be a file that|hold a valid DGL graph).* (shape|field 'x' must)",
    ):
        load_saved_graph(path)


def test_names(dgl, tmp_path):
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [heterograph(dgl)])
    whole = path.read_bytes()
    name = struct.pack("<Q", 1)
    for before, after, message in [
        (
            name + b"b" + struct.pack("<QQ", 3, 1),
            name + b"a" + struct.pack("<QQ", 3, 1),
            "vertex types must differ",
        ),
        (
            name + b"b" + struct.pack("<QQ", 3, 1),
            name + b"\x1b" + struct.pack("<QQ", 3, 1),
            r"the name b'\\x1b'",
        ),
        (struct.pack("<Q", 4) + b"half", struct.pack("<Q", 4) + b"h\xff\xfff", "the name b'h"),
        (struct.pack("<Q", 4) + b"half", struct.pack("<Q", 2**60) + b"half", "it ends too early"),
    ]:
        path.write_bytes(whole)
        change(path, before, after)
        with pytest.raises(FormatError, match=message):
            load_saved_graph(path)


@pytest.mark.attack
def test_any_damage_is_one_error(dgl, tmp_path):
    """Nothing else comes out, and no vertex or edge that is not there."""
    path, draw = tmp_path / "g.bin", random.Random(0)
    dgl.save_graphs(str(path), [in_layouts(heterograph(dgl), LAYOUTS)], formats=LAYOUTS)
    whole = path.read_bytes()
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 8])):
            place = draw.choice([draw.randrange(24), draw.randrange(4096, len(content) - 8)])
            content[place] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        path.write_bytes(
            content[: draw.choice([len(content), len(content), draw.randrange(len(content))])]
        )
        try:
            graph = load_saved_graph(path)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        for etype in graph.edge_types:
            graph.csc_of(etype).validate()


def test_it_needs_no_dgl(dgl, tmp_path):
    dgl.save_graphs(str(tmp_path / "g.bin"), [heterograph(dgl)])
    code = (
        "import sys; from pagraph.datasets import read_graph\n"
        f"assert read_graph({str(tmp_path / 'g.bin')!r}).num_edges == 62\n"
        "assert not {'dgl', 'pagraph.dgl'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([bare_python(), "-c", code], check=True, env=environment)


@pytest.mark.parametrize(("src", "dst"), [(0, 2**20), (0, -1), (7, 0), (2**32 + 5, 0), (0, 2**62)])
def test_what_dgl_itself_loaded_is_looked_at(dgl, tmp_path, src, dst):
    """DGL checks no id when it converts: the process ended, or ids were cut to 32 bits."""
    path = tmp_path / "g.bin"
    save(dgl, path, "coo")
    change(path, struct.pack("<8q", *SRC), struct.pack("<8q", src, *SRC[1:]))
    change(path, struct.pack("<8q", *DST), struct.pack("<8q", dst, *DST[1:]))
    loaded = dgl.load_graphs(str(path))[0][0]
    with pytest.raises(
        ValueError, match=r"(sources|destinations) of \('_N', '_E', '_N'\) must be in \[0, 7\)"
    ):
        Graph.from_dgl(loaded)
    with pytest.raises(ValueError, match=r"(sources|destinations) of .* must be in \[0, 7\)"):
        from pagraph.dgl import core_graph

        core_graph(loaded)


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_rows_that_dgl_itself_loaded_are_looked_at(dgl, tmp_path, layout, which):
    path = tmp_path / "g.bin"
    arrays, _ = save(dgl, path, layout)
    change(path, arrays[which], arrays[which][:-8] + struct.pack("<q", 2**32 + 5))
    loaded = dgl.load_graphs(str(path))[0][0]
    with pytest.raises(ValueError, match=r"(indptr|indices|edge ids of .*) must (run|be in)"):
        Graph.from_dgl(loaded)
