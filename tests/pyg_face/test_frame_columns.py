"""``to_pyg(graph, frames=True)``: frames equal to those that PyTorch Frame makes of the same tables,
with its statistics, from memory, folders and databases."""

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

pytest.importorskip("torch_frame", reason="needs PyTorch Frame")
import pandas as pd
from torch_frame import TensorFrame, stype
from torch_frame.data import Dataset, MultiNestedTensor
from torch_frame.data.stats import StatType, compute_col_stats
from torch_geometric.data import HeteroData

from pagraph import Graph, NeighborSampler
from pagraph.datasets import import_graph, open_graph, reorder, write_graph
from pagraph.errors import FormatError, MissingDependencyError
from pagraph.graph.fields import FieldNote
from pagraph.pyg import NeighborLoader, to_pyg
from pagraph.pyg.columns import calendar

# PyTorch Frame asks pandas 3.1 for what that calls otherwise, and takes arrays that it may not write.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Series.dt.dayofweek is deprecated"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]

KINDS = {
    "age": stype.numerical,
    "country": stype.categorical,
    "height": stype.numerical,
    "joined": stype.timestamp,
    "vip": stype.categorical,
    "taste": stype.embedding,
    "words": stype.embedding,
}


def users(count=40, seed=0, *, holes=True):
    """A table with a column of every kind that a field holds."""
    rng = np.random.default_rng(seed)
    height = rng.normal(170, 10, count).astype(np.float32)
    country = rng.choice(["de", "fr", "it"], count, p=[0.2, 0.3, 0.5]).astype(object)
    if holes and count > 3:
        height[1] = np.nan
        country[2] = None
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, count),
            "height": height,
            "country": country,
            "vip": rng.random(count) < 0.3,
            "joined": pd.Timestamp("1969-11-01")
            + pd.to_timedelta(rng.integers(0, 10**9, count), "s"),
            "taste": list(rng.normal(size=(count, 3)).astype(np.float32)),
            "words": list(rng.normal(size=(count, 2)).astype(np.float32)),
        }
    )


def shop(count=40, seed=0):
    rng = np.random.default_rng(seed)
    people = users(count, seed)
    people.insert(0, "id", np.arange(1000, 1000 + count))
    orders = pd.DataFrame(
        {
            "user_id": rng.choice(people["id"], 3 * count),
            "placed": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 365, 3 * count), "D"),
        }
    )
    return Graph.from_tables({"users": people, "orders": orders}, times={"users": None})


def theirs(table, kinds=KINDS):
    made = Dataset(table, dict(kinds)).materialize()
    return made.tensor_frame, made.col_stats


def words_of(frame, stats):
    """Each categorical column by its words: equally frequent ones may have each other's codes."""
    found = {}
    for place, name in enumerate(frame.col_names_dict.get(stype.categorical, [])):
        words = [*stats[name][StatType.COUNT][0], None]
        codes = frame.feat_dict[stype.categorical][:, place]
        found[name] = [words[code] for code in codes.tolist()]
    return found


def same(mine, other):
    """Whether two pairs of a frame and its statistics hold the same."""
    (frame, stats), (expected, expected_stats) = mine, other
    assert type(frame) is TensorFrame
    assert frame.col_names_dict == expected.col_names_dict
    assert words_of(frame, stats) == words_of(expected, expected_stats)
    for part, values in expected.feat_dict.items():
        got = frame.feat_dict[part]
        if part is stype.embedding:
            assert torch.equal(got.values, values.values)
            assert got.offset.tolist() == values.offset.tolist()
        elif part is not stype.categorical:
            assert got.dtype == values.dtype
            assert torch.equal(got.nan_to_num(-7.5), values.nan_to_num(-7.5))
    assert set(stats) == set(expected_stats)
    for name, known in expected_stats.items():
        assert set(stats[name]) == set(known)
        for kind, value in known.items():
            found = stats[name][kind]
            if kind is StatType.COUNT:
                # Words that no row has stay: (False, True) are two, whatever there is.
                there = {word: count for word, count in zip(*found, strict=True) if count}
                assert there == dict(zip(*value, strict=True))
                assert found[1] == sorted(found[1], reverse=True)
            elif isinstance(value, torch.Tensor):
                assert torch.equal(found, value)
            else:
                assert found == pytest.approx(value, rel=1e-6, nan_ok=True)
    return True


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(8, 60), holes=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_columns_are_those_of_pytorch_frame(seed, count, holes):
    table = users(count, seed, holes=holes)
    graph = Graph.from_coo([0], [1], num_nodes=count)
    for name in table:
        graph.set_field(name, table[name])
    data = to_pyg(graph, frames=True)
    assert same((data.tf, data.col_stats), theirs(table))
    assert not set(KINDS) & set(data.keys())


def test_tables_folders_and_databases(tmp_path):
    graph = shop()
    write_graph(graph, tmp_path / "shop")
    for opened in (graph, open_graph(tmp_path / "shop")):
        data = to_pyg(opened, frames=True)
        expected = theirs(users())
        assert same((data["users"].tf, data["users"].col_stats), expected)
        assert data["orders"].tf.col_names_dict == {stype.timestamp: ["time"]}
        # Samplers read times, and users look original ids up.
        assert data["orders"].time.dtype == torch.int64
        assert data["users"].original_id.tolist() == list(range(1000, 1040))
        assert set(data["users"].keys()) == {"num_nodes", "tf", "col_stats", "original_id"}
        assert set(data.collect("col_stats")) == {"users", "orders"}


def test_a_database(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as shop:
        shop.execute("create table users(id integer primary key, country varchar, age integer)")
        shop.execute("create table orders(user_id integer references users, price double)")
        shop.execute(
            "insert into users select i, ['de', 'fr', 'fr'][i % 3 + 1], i from range(30) t(i)"
        )
        shop.execute("insert into orders select i % 30, i / 8 from range(90) t(i)")
    import_graph(tmp_path / "shop.duckdb", tmp_path / "shop")
    data = to_pyg(open_graph(tmp_path / "shop"), frames=True)
    assert data["users"].tf.col_names_dict == {
        stype.numerical: ["age"],
        stype.categorical: ["country"],
    }
    assert data["users"].col_stats["country"][StatType.COUNT] == (["fr", "de"], [20, 10])
    assert data["orders"].tf.feat_dict[stype.numerical].flatten().tolist() == [
        i / 8 for i in range(90)
    ]


def test_batches_have_the_columns_once():
    data = to_pyg(shop(), frames=True)
    seeds = ("users", torch.arange(40))
    loader = NeighborLoader(
        data,
        [4, 4],
        seeds,
        input_time=torch.full((40,), 1_720_000_000),
        time_attr="time",
        batch_size=8,
        num_workers=2,
    )
    for batch in loader:
        for ntype in ("users", "orders"):
            assert batch[ntype].tf == data[ntype].tf[batch[ntype].n_id]
            assert batch[ntype].col_stats == data[ntype].col_stats
        assert (batch["orders"].time <= 1_720_000_000).all()
    read = set(loader.stats.total.reads.fields)
    parts = {"numerical", "categorical", "timestamp", "embedding"}
    assert read == {f"users/tf.{part}" for part in parts} | {
        "users/original_id",
        "orders/tf.timestamp",
        "orders/time",
    }


def test_what_stays_beside_the_frame():
    graph = Graph.from_coo([0], [1], num_nodes=4)
    beside = {
        "feat": torch.ones(4, 2),
        "label": torch.arange(4),
        "train_mask": torch.ones(4, dtype=torch.bool),
        "original_id": torch.arange(4),
        "image": torch.ones(4, 2, 2),
        "wave": torch.ones(4, dtype=torch.complex64),
        "nothing": torch.ones(4, 0),
        "time": torch.arange(4.0),
    }
    for name, values in beside.items():
        graph.set_field(name, values)
    data = to_pyg(graph, frames=True)
    assert set(data.keys()) == {
        *(set(beside) - {"feat", "label"}),
        *("x", "y", "edge_index", "num_nodes", "tf", "col_stats"),
    }
    # As in RelBench's graphs, a type without columns has a constant one.
    assert data.tf.col_names_dict == {stype.numerical: ["__const__"]}
    assert data.tf.feat_dict[stype.numerical].tolist() == [[1.0]] * 4
    assert data.col_stats["__const__"][StatType.MEAN] == 1


def test_a_column_alone_is_no_copy(tmp_path):
    graph = Graph.from_coo([0], [1], num_nodes=4)
    graph.set_field("price", torch.rand(4))
    graph.set_field("words", torch.rand(4, 3))
    write_graph(graph, tmp_path / "graph")
    opened = open_graph(tmp_path / "graph")
    frame = to_pyg(opened, frames=True).tf
    for part, name in ("numerical", "price"), ("embedding", "words"):
        values = frame.feat_dict[stype(part)]
        values = values.values if part == "embedding" else values
        assert values.data_ptr() == opened.ndata[name].data_ptr()


def test_numbers_of_all_dtypes():
    graph = Graph.from_coo([0], [1], num_nodes=3)
    dtypes = [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int16, torch.int32]
    for dtype in dtypes:
        graph.set_field(str(dtype)[6:], torch.tensor([3, 1, 2]).to(dtype))
    graph.set_field("open", torch.tensor([float("inf"), 1, 3]))
    graph.set_field("unknown", torch.full((3,), float("nan")))
    data = to_pyg(graph, frames=True)
    names = data.tf.col_names_dict[stype.numerical]
    values = data.tf.feat_dict[stype.numerical]
    assert values.dtype == torch.float32
    for dtype in dtypes:
        assert values[:, names.index(str(dtype)[6:])].tolist() == [3, 1, 2]
    for name in ("open", "unknown"):
        column = pd.Series(graph.ndata[name].numpy())
        expected = compute_col_stats(column, stype.numerical)
        for kind, value in expected.items():
            assert data.col_stats[name][kind] == pytest.approx(value, nan_ok=True)


def test_missing_times_and_an_empty_table():
    graph = Graph.from_coo([0], [1], num_nodes=3)
    missing = torch.iinfo(torch.int64).min
    graph.set_field("sent", torch.tensor([missing, 86_400, 0]))
    graph.ndata.notes["sent"] = FieldNote(unit="seconds")
    data = to_pyg(graph, frames=True)
    series = pd.Series(pd.to_datetime([None, 86_400, 0], unit="s"))
    expected = theirs(pd.DataFrame({"sent": series}), {"sent": stype.timestamp})
    assert same((data.tf, data.col_stats), expected)
    graph.set_field("sent", torch.full((3,), missing))
    graph.ndata.notes["sent"] = FieldNote(unit="seconds")
    stats = to_pyg(graph, frames=True).col_stats["sent"]
    expected = compute_col_stats(pd.Series([pd.NaT] * 3), stype.timestamp)
    assert stats[StatType.YEAR_RANGE] == expected[StatType.YEAR_RANGE]
    assert torch.equal(stats[StatType.MEDIAN_TIME], expected[StatType.MEDIAN_TIME])


UNITS = {"seconds": "s", "microseconds": "us", "nanoseconds": "ns"}


@given(
    times=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=20),
    unit=st.sampled_from(list(UNITS)),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_calendar_is_that_of_pandas(times, unit):
    # Within the years that pandas knows in nanoseconds.
    scale = {"seconds": 10**9, "microseconds": 10**3, "nanoseconds": 1}[unit]
    times = [time // scale for time in times]
    moments = pd.Series(np.array(times, dtype=f"M8[{UNITS[unit]}]").astype("M8[ns]")).dt
    expected = np.stack(
        [
            moments.year,
            moments.month - 1,
            moments.day - 1,
            moments.day_of_week,
            moments.hour,
            moments.minute,
            moments.second,
        ],
        axis=1,
    )
    assert calendar(torch.tensor(times), unit).tolist() == expected.tolist()


def test_codes_that_stand_for_no_word_are_an_error():
    graph = Graph.from_coo([0], [1], num_nodes=3)
    graph.set_field("country", torch.tensor([0, 1, 2]))
    graph.ndata.notes["country"] = FieldNote(words=("de", "fr"))
    with pytest.raises(
        ValueError, match=r"^field 'country' must hold codes of its 2 words, got 2$"
    ):
        to_pyg(graph, frames=True)


def test_a_field_called_as_the_frame_is_a_column_of_it():
    graph = Graph.from_coo([0], [1], num_nodes=3)
    graph.set_field("tf", torch.arange(3))
    assert to_pyg(graph, frames=True).tf.col_names_dict == {stype.numerical: ["tf"]}
    graph.set_field("tf", torch.ones(3, 2, 2))
    with pytest.raises(ValueError, match="'tf' must have another name"):
        to_pyg(graph, frames=True)


def test_bad_arguments(monkeypatch):
    graph = Graph.from_coo([0], [1])
    with pytest.raises(TypeError, match="frames must be True or False, got 'yes'"):
        to_pyg(graph, frames="yes")
    monkeypatch.setitem(sys.modules, "torch_frame", None)
    with pytest.raises(MissingDependencyError, match="pip install pytorch-frame"):
        to_pyg(graph, frames=True)
    assert "tf" not in to_pyg(graph)


def test_a_database_of_relbench(tmp_path):
    base = pytest.importorskip("relbench.base", reason="needs relbench")
    modeling = pytest.importorskip("relbench.modeling.graph", reason="needs relbench with PyG")
    people = users(holes=False)
    people.insert(0, "id", np.arange(40))
    orders = pd.DataFrame(
        {"id": np.arange(120), "user": np.arange(120) % 40, "price": np.arange(120) / 8}
    )
    tables = {
        "users": base.Table(people, {}, "id", "joined"),
        "orders": base.Table(orders, {"user": "users"}, "id", None),
    }
    database = base.Database(tables)
    kinds = {
        "users": {"id": stype.numerical, **KINDS},
        "orders": {"id": stype.numerical, "user": stype.numerical, "price": stype.numerical},
    }
    expected, stats = modeling.make_pkey_fkey_graph(database, kinds)
    data = to_pyg(Graph.from_tables(database), frames=True)
    # RelBench's column of a time has its own name, and ours that of the field.
    names = expected["users"].tf.col_names_dict
    names[stype.timestamp] = ["time"]
    stats["users"]["time"] = stats["users"].pop("joined")
    for ntype in ("users", "orders"):
        assert same((data[ntype].tf, data[ntype].col_stats), (expected[ntype].tf, stats[ntype]))


def framed(count=30):
    """A graph of two types whose frames have parts of every kind, with statistics."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    table = users(count)
    made = Dataset(table, dict(KINDS)).materialize()
    data["user"].tf = made.tensor_frame
    data["user"].tf.y = torch.arange(count)
    data["user"].col_stats = made.col_stats
    cells = [[torch.randint(9, (i % 4,), generator=generator)] for i in range(count)]
    features = {
        stype.numerical: torch.randn(count, 2, generator=generator),
        stype.multicategorical: MultiNestedTensor.from_tensor_mat(cells),
    }
    names = {stype.numerical: ["a", "b"], stype.multicategorical: ["c"]}
    data["item"].tf = TensorFrame(features, names)
    ends = torch.randint(count, (2, 100), generator=generator)
    data["user", "buys", "item"].edge_index = ends
    data["item", "rev_buys", "user"].edge_index = ends.flip(0)
    return data


def test_a_frame_is_stored_in_a_folder_and_mapped(tmp_path, caplog):
    data = framed()
    graph = Graph.from_pyg(data)
    assert "left out: tf.multicategorical" in caplog.text
    write_graph(graph, tmp_path / "graph")
    opened = open_graph(tmp_path / "graph")
    for source in (graph, opened):
        for frames in (False, True):
            back = to_pyg(source, frames=frames)
            frame = back["user"].tf
            assert same((frame, back["user"].col_stats), (data["user"].tf, data["user"].col_stats))
            assert torch.equal(frame.y, data["user"].tf.y)
            assert set(back["user"].keys()) == {"tf", "col_stats", "num_nodes"}
            # What is no dense row stays behind; nothing is known of these columns.
            assert back["item"].tf.col_names_dict == {stype.numerical: ["a", "b"]}
            assert back["item"].col_stats == {"a": {}, "b": {}}
            fields = source.node_fields("user")
            for part in ("numerical", "categorical", "timestamp"):
                pointer = frame.feat_dict[stype(part)].data_ptr()
                assert pointer == fields[f"tf.{part}"].data_ptr()
            embedding = frame.feat_dict[stype.embedding]
            assert embedding.values.data_ptr() == fields["tf.embedding"].data_ptr()
    assert opened.node_fields("user").notes == graph.node_fields("user").notes
    loader = NeighborLoader(to_pyg(opened), [4], ("user", None), batch_size=8, cache="10KiB")
    for batch in loader:
        for ntype in ("user", "item"):
            whole = to_pyg(graph)[ntype].tf
            assert batch[ntype].tf == whole[batch[ntype].n_id]


def test_a_reordered_graph_keeps_its_frames(tmp_path):
    graph = Graph.from_pyg(framed())
    write_graph(graph, tmp_path / "graph")
    task = {"seeds": {"user": torch.arange(30)}, "sampler": NeighborSampler([2]), "batch_size": 8}
    reorder(open_graph(tmp_path / "graph"), tmp_path / "moved", by="reads", **task)
    moved = to_pyg(open_graph(tmp_path / "moved"))["user"]
    before = to_pyg(graph)["user"]
    assert moved.tf == before.tf[moved.original_id]
    assert set(moved.col_stats) == set(before.col_stats)


def test_a_stored_frame_without_pytorch_frame_is_its_fields(tmp_path, monkeypatch):
    write_graph(Graph.from_pyg(framed()), tmp_path / "graph")
    monkeypatch.setitem(sys.modules, "torch_frame", None)
    data = to_pyg(open_graph(tmp_path / "graph"))
    assert data["user"]["tf.numerical"].shape == (30, 2)
    assert "tf" not in data["user"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (3, "frame must be a JSON list, got 3"),
        ([3], "name must be a JSON str"),
        ([{"name": "a\nb", "width": 1, "stats": {}}], "name must be printable characters"),
        ([{"name": "a", "width": -1, "stats": {}}], "width must be at least 0, got -1"),
        ([{"name": "a", "width": 1, "stats": 1}], "stats must be a JSON dict"),
    ],
)
def test_a_wrong_manifest_of_a_frame_is_one_error(tmp_path, damage, message):
    write_graph(Graph.from_pyg(framed()), tmp_path / "graph")
    path = tmp_path / "graph" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    (user,) = [entry for entry in manifest["node_types"] if entry["name"] == "user"]
    user["fields"]["tf.numerical"]["frame"] = damage
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=message) as raised:
        open_graph(tmp_path / "graph")
    assert "\n" not in str(raised.value)


def test_a_part_with_other_columns_than_its_frame_is_one_error():
    graph = Graph.from_pyg(framed())
    fields = graph.node_fields("item")
    note = fields.notes["tf.numerical"]
    fields["tf.numerical"] = torch.ones(30, 3)
    fields.notes["tf.numerical"] = note
    with pytest.raises(ValueError, match="must have 2 columns, as its frame has, got \\[30, 3\\]"):
        to_pyg(graph)
