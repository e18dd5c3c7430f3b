"""Division of a loader's memory: never more than there is, more of everything with more, and the
least by number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.cache.memory_plan import MemoryNeeds, MemoryPlan, divide_memory, usable_memory

sizes = st.integers(0, 1 << 40)
all_needs = st.builds(
    MemoryNeeds,
    process=sizes,
    batch=st.integers(0, 1 << 30),
    batches=st.integers(1, 64),
    staging=st.integers(0, 1 << 25),
    ahead=st.integers(0, 1 << 30),
    lookahead=st.none() | st.integers(0, 2**14),
    num_batches=st.integers(1, 1000),
    topology=sizes,
    topology_reads=st.floats(0, 1e12),
    cache=sizes,
    cache_reads=st.floats(0, 1e12),
    cache_given=st.none() | sizes,
)


@given(sizes, all_needs)
def test_parts_never_take_more_than_there_is(total, needs):
    plan = divide_memory(total, needs, given=False)
    assert min(plan.window, plan.topology, plan.cache, plan.process, plan.left) >= 0
    assert plan.topology <= needs.topology and plan.cache <= needs.cache
    assert plan.window == 0 or plan.window >= needs.ahead
    more = plan.window + plan.topology + plan.cache
    # Without room there are the batches alone.
    assert plan.process + plan.taken + plan.left == total or not more
    if more:
        assert plan.process + plan.taken <= total
    if needs.cache_given is not None:
        assert plan.cache <= needs.cache_given


@given(sizes, sizes, all_needs)
def test_more_memory_is_more_of_each_part(less, more, needs):
    small, large = (divide_memory(total, needs, given=False) for total in sorted((less, more)))
    assert small.window <= large.window
    assert small.topology <= large.topology
    assert small.cache <= large.cache
    assert small.process >= large.process


@given(st.integers(1, 1 << 40), all_needs)
def test_the_least_is_named_to_the_byte(total, needs):
    try:
        plan = divide_memory(total, needs)
    except ValueError as error:
        least = int(re.match(r"memory must be at least (\d+) bytes", str(error)).group(1))
        assert least > total and str(error).endswith(f"got {total}")
        assert divide_memory(least, needs).total == least
        if least:
            with pytest.raises(ValueError, match=f"at least {least} bytes"):
                divide_memory(least - 1, needs)
    else:
        assert plan.process + plan.taken <= total
        assert plan.cache >= min(needs.cache, needs.cache_given or 0)


def test_all_that_is_of_use_gets_room_before_anything_is_left():
    needs = MemoryNeeds(
        batch=10, batches=4, ahead=5, num_batches=3, topology=100, topology_reads=1, cache=200
    )
    plan = divide_memory(1000, needs)
    assert (plan.batches, plan.window, plan.topology, plan.cache, plan.left) == (
        40,
        15,
        100,
        200,
        645,
    )
    assert divide_memory(46, needs).window == 5  # one batch's, before anything else


def test_edges_and_rows_share_by_what_they_save():
    needs = MemoryNeeds(topology=100, topology_reads=10, cache=100, cache_reads=20)
    plan = divide_memory(50, needs)
    # 1 to 4: the square of what is read of as many bytes.
    assert (plan.topology, plan.cache) == (10, 40)
    assert divide_memory(150, needs).cache == 100
    assert divide_memory(50, MemoryNeeds(topology=100, topology_reads=10)).topology == 50


def test_an_eighth_is_free_for_what_the_process_holds():
    plan = divide_memory(800, MemoryNeeds(process=150, batch=10, batches=1))
    assert (plan.process, plan.left) == (50, 740)
    assert divide_memory(800, MemoryNeeds(process=100)).process == 0


def test_a_plan_prints_as_a_table_and_as_numbers():
    ahead = {"ahead": 1 << 20, "ahead_rows": 1 << 18, "num_batches": 2}
    needs = MemoryNeeds(1 << 20, 1 << 20, 4, topology=1 << 25, topology_reads=1.0, **ahead)
    plan = divide_memory(1 << 30, needs)
    assert str(plan).splitlines() == [
        "memory: 1 GiB; 256 MiB more is left for computing and the page cache",
        "part        bytes  of what it could use",
        "process       0 B                        of the 1 MiB that it holds",
        "batches     4 MiB                        4 of 1 MiB: made, waiting, in your hands",
        "window      2 MiB                        groups of 2 batches, which miss 256 KiB each at "
        "most",
        "topology   32 MiB                100.0%  edges on disk",
        "cache         0 B                     -  rows on disk",
        "left      986 MiB",
    ]
    assert "<td" in plan._repr_html_()
    assert plan.to_dict() == {
        "total": 1 << 30,
        "process": 0,
        "batches": 4 << 20,
        "staging": 0,
        "window": 2 << 20,
        "topology": 32 << 20,
        "cache": 0,
        "left": 986 << 20,
    }
    assert "nothing is planned, as it rains" in str(MemoryPlan(1, reason="as it rains"))


@given(sizes, sizes)
def test_a_quarter_more_than_what_is_usable_is_there(available, process):
    usable = usable_memory(available, process)
    assert usable + usable // 4 <= available + process < usable + usable // 4 + 3
