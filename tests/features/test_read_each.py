"""Several fields read in one call: the same rows, counts and errors as one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import is_current
from test_field_set import N, field_set, ids_of
from tiers import examples

from pagraph.cache.fields import Read
from pagraph.graph.stored_rows import IndexedRows
from pagraph.system.buffers import BufferPool

DTYPES = [
    *(torch.float32, torch.float64, torch.int64, torch.int8),
    *(torch.bool, torch.bfloat16, torch.complex64),
]
SHAPES = [(), (1,), (3,), (0,), (33,), (2, 3)]


def values_of(shape, dtype, layout, seed):
    """Values of any dtype, whose rows lie side by side, apart, by column, or are all the same
    memory."""
    rows = torch.randint(0, 2, (2 * N, *shape), generator=torch.Generator().manual_seed(seed)).to(
        dtype
    )
    if layout == "apart":
        return rows[::2]
    if layout == "columns" and len(shape) == 1:
        return rows[:N].t().contiguous().t()
    return rows[:1].expand(N, *shape) if layout == "one" else rows[:N]


def reads(keys, ids, bounds=None):
    return [Read(key, ids, bounds) for key in keys]


fields_given = st.lists(
    st.tuples(
        st.sampled_from(SHAPES),
        st.sampled_from(DTYPES),
        st.sampled_from(["whole", "apart", "columns", "one"]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.many
@settings(max_examples=examples(150), deadline=None)
@given(
    fields_given,
    st.integers(0, 400),
    st.sampled_from([torch.int32, torch.int64]),
    st.integers(0, 99),
)
def test_each_equals_its_own_rows(given_fields, count, id_dtype, seed):
    values = {f"f{i}": values_of(*of_field, seed + i) for i, of_field in enumerate(given_fields)}
    fields, ids = field_set(values, None), ids_of(count, seed).to(id_dtype)
    bounds = [count // 3, count]
    read = fields.read_each(reads(values, ids, bounds))
    for key, rows in zip(values, read, strict=True):
        assert rows.tensor.dtype == values[key].dtype and rows.tensor.is_contiguous()
        assert torch.equal(rows.tensor, values[key][ids.long()]) and is_current(fields, key, rows)
        counted = fields.counters.fields[key]
        assert counted.rows.get("host", 0) == count and counted.seconds >= 0
        assert counted.nbytes["host"] == rows.tensor.nbytes
        assert counted.asked_by_hop == (count // 3, count - count // 3)


def test_ids_of_two_dtypes():
    """As of vertices and of edges, where only one of them is narrow."""
    values = {"a": torch.randn(N, 3), "b": torch.randn(N), "c": torch.randn(N, 2)}
    fields = field_set(values, None)
    ids = {"a": ids_of(50, 1).int(), "b": ids_of(70, 2).long(), "c": ids_of(60, 3).int()}
    read = fields.read_each([Read(key, ids[key]) for key in values])
    for key, rows in zip(values, read, strict=True):
        assert torch.equal(rows.tensor, values[key][ids[key].long()])


def test_cached_fields_and_rows_by_reference_are_read_with_plain_ones(tmp_path):
    from numpy import save

    from pagraph.graph.mapped import map_npy

    save(tmp_path / "feat.npy", torch.randn(N, 5).numpy())
    mapped = map_npy(tmp_path / "feat.npy")
    table = torch.randint(0, 7, (N,))
    values = {
        "a": torch.randn(N, 3),
        "b": mapped,
        "c": torch.arange(N),
        "d": IndexedRows(torch.randn(7, 2), table),
    }
    fields = field_set(values, "50%")
    fields.prepare()
    ids = ids_of()
    read = dict(
        zip(values, (rows.tensor for rows in fields.read_each(reads(values, ids))), strict=True)
    )
    assert torch.equal(read["a"], values["a"][ids]) and torch.equal(
        read["b"], torch.as_tensor(mapped)[ids]
    )
    assert torch.equal(read["c"], ids) and torch.equal(read["d"], values["d"].source[table[ids]])
    for key in values:
        assert sum(fields.counters.fields[key].rows.values()) == len(ids)


@pytest.mark.parametrize("bad", [-1, N, 2**31 - 1, 2**40])
@pytest.mark.parametrize("place", [0, 57, 99])
def test_a_bad_id_is_an_error_and_is_not_counted(bad, place):
    values = {"a": torch.randn(N, 3), "b": torch.randn(N), "c": torch.randn(N, 40)}
    fields, ids = field_set(values, None), ids_of()
    ids[place] = bad
    with pytest.raises(
        IndexError, match=rf"ids must be in \[0, {N}\), got {bad} at position {place}"
    ):
        fields.read_each(reads(values, ids))
    assert all(not counted.rows for counted in fields.counters.fields.values())


def test_the_shorter_of_two_fields_is_told():
    fields = field_set({"a": torch.randn(N), "b": torch.randn(N // 2)}, None)
    with pytest.raises(
        IndexError, match=rf"ids must be in \[0, {N // 2}\), got {N - 1} at position 1"
    ):
        fields.read_each(reads("ab", torch.tensor([0, N - 1])))


def test_unknown_fields_and_written_values():
    values = {"a": torch.randn(N), "b": torch.randn(N)}
    fields, ids = field_set(values, None), ids_of()
    asked = reads(["a", "gone"], ids)
    rows = fields.read_each(asked)
    assert torch.equal(rows[0].tensor, values["a"][ids]) and rows[1] is None
    with pytest.raises(KeyError):
        fields.current_each(asked, None, rows)
    asked = reads("ab", ids)
    first = fields.read_each(asked)
    values["b"].add_(1)
    assert is_current(fields, "a", first[0]) and not is_current(fields, "b", first[1])
    now = fields.current_each(asked, None, first)
    assert now[0] is first[0] and torch.equal(now[1].tensor, values["b"][ids])
    assert torch.equal(fields.read_each(asked)[1].tensor, values["b"][ids])


def test_a_field_that_comes_back_is_read_then():
    values = {"a": torch.randn(N), "b": torch.randn(N)}
    fields, ids = field_set({"a": values["a"], "b": lambda: values["b"]}, None), ids_of()
    taken = values.pop("b")
    asked = reads("ab", ids)
    rows = fields.read_each(asked)
    assert rows[1] is None
    values["b"] = taken
    assert torch.equal(fields.current_each(asked, None, rows)[1].tensor, taken[ids])


def test_reads_of_other_ids_and_a_users_storage():
    values = {"a": torch.randn(N), "b": torch.randn(N, 2), "c": torch.randn(N)}
    fields, ids, few = field_set(values, None), ids_of(), ids_of(7)
    fields.add_storage("own", lambda some: some * 2)
    asked = [
        Read("a", ids),
        Read("c", few, [7]),
        Read("own", few),
        Read("b", ids),
        Read("own", ids),
    ]
    rows = fields.read_each(asked)
    expected = [values["a"][ids], values["c"][few], few * 2, values["b"][ids], ids * 2]
    for got, wanted in zip(rows, expected, strict=True):
        assert torch.equal(got.tensor, wanted)
    assert [
        now is before
        for now, before in zip(fields.current_each(asked, None, rows), rows, strict=True)
    ] == [True] * 5


def test_memory_of_each_field_comes_back_by_itself():
    pool = BufferPool(8)
    fields = field_set({"a": torch.randn(N, 64), "b": torch.randn(N)}, None, pool=pool)
    wide, narrow = (rows.tensor for rows in fields.read_each(reads("ab", ids_of())))
    address = wide.data_ptr()
    del wide  # the other field's rows do not keep it
    assert pool.take((100, 64), torch.float32).data_ptr() == address
    assert narrow.shape == (100,)
