"""Batches that stop for Python or for more room: users' pickers, nested batches, exceptions, ids of
several widths, excluded edges, edges on disk; against batches drawn otherwise, bit by bit."""

import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import cycle, product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from by_pickers import by_pickers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_edges_on_disk import know_nothing
from test_whole_batch import flat, numbered
from tiers import examples

from pagraph import CSC, Graph, NeighborSampler
from pagraph.graph import csc_pages
from pagraph.graph.mapped import map_npy
from pagraph.sampling import LaborSampler, SubgraphSampler, whole_batch
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.sampling.edge_values import edge_weights
from pagraph.sampling.hop import ASK_EDGES, ASK_OFFSETS, ASK_ROWS, PICK, STATUS, Scratch
from pagraph.sampling.pickers import UniformPicker

NARROW, WIDE = torch.int32, torch.int64
TYPES = [("a", "to", "a"), ("b", "of", "a"), ("a", "has", "b"), ("b", "none", "a")]
SIZES = {"a": 40, "b": 20}
# Repeated seeds, and isolated vertices.
SEEDS = {"a": torch.tensor([0, 0, 3, 39, 7]), "b": torch.tensor([1, 19])}
OTHERS = {"b": torch.tensor([2, 0]), "a": torch.tensor([5])}

KINDS = {
    "blocks": NeighborSampler([3, 5]),
    "weighted": NeighborSampler([3, 5], prob="w"),
    "labor": LaborSampler([3, 5]),
    "subgraph": SubgraphSampler([3, 5]),
    "trees": SubgraphSampler([3, 5], disjoint=True),
    "weighted trees": SubgraphSampler([3, 5], disjoint=True, prob="w"),
    "times": SubgraphSampler([3, 5], time="t"),
}
MORE = KINDS | {
    "all": NeighborSampler([-1, 2]),
    "all of labor": LaborSampler([2, -1]),
    "all of a subgraph": SubgraphSampler([-1, 2]),
    "all of weight": NeighborSampler([-1, -1], prob="w"),
    "all trees": SubgraphSampler([2, -1], disjoint=True),
    "labor weights": LaborSampler([3, 5], prob="w"),
    "replaced": NeighborSampler([3, 5], replace=True),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def graph_of(widths=(NARROW,) * 4, ids=(None, NARROW, None, None)):
    """Isolated vertices, self-loops, parallel edges, hubs, a type without edges, and one without
    weights and times; equal but for dtypes and ids."""
    rng = np.random.default_rng(7)
    csc = {}
    orders = {}
    for etype, width, id_width in zip(TYPES, widths, ids, strict=True):
        num_src, num_dst = SIZES[etype[0]], SIZES[etype[2]]
        count = 0 if etype[1] == "none" else 150
        src = rng.integers(0, num_src, count)
        dst = (num_dst // 2 * rng.random(count) ** 2).astype(int)
        src[:6] = dst[:6]
        src[6:12], dst[6:12] = src[12:18], dst[12:18]
        made = CSC.from_coo(src, dst, (num_src, num_dst))
        orders[etype] = torch.from_numpy(rng.permutation(count))
        own = None if id_width is None else orders[etype].to(id_width)
        csc[etype] = CSC(made.indptr.to(width), made.indices.to(width), num_src, own)
    graph = Graph(csc, SIZES)
    for etype in TYPES:
        for name in "wv" if etype[1] != "of" else "v":
            weights = rng.random(csc[etype].num_edges, dtype=np.float32)
            weights[::3] = 0
            graph.set_field(name, torch.from_numpy(weights), edge_type=etype)
    graph.set_field("t", torch.from_numpy(rng.integers(0, 50, 40)), node_type="a")
    return graph


def sample(sampler, graph, seeds=SEEDS, key=1, **more):
    if sampler.time is not None:
        more["seed_times"] = {ntype: ids * 7 % 50 for ntype, ids in seeds.items()}
    return sampler.sample(graph, seeds, key, **more)


def draw(*given, **more):
    """All that a batch holds."""
    return flat(sample(*given, **more))


def picked(sampler, *given, **more):
    """:func:`draw` by pickers, of a sampler that has no plan yet."""
    return by_pickers(lambda: draw(replace(sampler), *given, **more))


def own(*bases, **members):
    """A user's subclass."""
    return type("Own", bases, members)


def of_own(sampler, *mixins, **members):
    """A sampler with the same settings, of a user's subclass."""
    settings = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
    return own(*mixins, type(sampler), **members)(**settings)


def in_threads(count, call, items):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, items))


@contextmanager
def stops():
    """The statuses of all stops."""
    seen = []
    act = whole_batch._act

    def note(batch, arena, scratch, report):
        seen.append(report[STATUS])
        return act(batch, arena, scratch, report)

    with patch.object(whole_batch, "_act", note):
        yield seen


@contextmanager
def no_room():
    """Room for no edges at first, which has to grow."""
    with (
        patch.object(whole_batch, "_MOST_EDGES", 0),
        patch.object(Scratch.of_this_thread(), "room", 1),
    ):
        whole_batch._Layout.of.cache_clear()
        try:
            yield
        finally:
            whole_batch._Layout.of.cache_clear()


class Asked:
    """Leaves what it decides to the library."""

    def pick(self, *given):
        return super().pick(*given)


class FirstEdge:
    """Decides all that a sampler can but for weights: one uniform edge for each vertex."""

    def pick(self, graph, hop, number, edge_type, field):
        return UniformPicker(1).pick(hop)

    def picker(self, graph, hop, edge_type, field):
        return UniformPicker(1)

    def fanout(self, hop, edge_type):
        return 1


@every_kind
def test_a_subclass_that_decides_nothing_is_not_asked(kind):
    graph, sampler = graph_of(), KINDS[kind]
    base = type(sampler)
    seen = []

    class Counted(base):
        def sample(self, *given, **more):
            seen.append(self)
            return super().sample(*given, **more)

    @dataclass(frozen=True)
    class Named(base):
        name: str = "mine"

    # The last one's methods come after those of the library.
    for made in own(base), Counted, Named, own(base, FirstEdge):
        users = made(**{field.name: getattr(sampler, field.name) for field in fields(sampler)})
        with stops() as statuses:
            assert draw(users, graph) == draw(sampler, graph)
        assert not statuses and not users.plan(graph).asks
    assert len(seen) == 1


@pytest.mark.parametrize("base", [NeighborSampler, SubgraphSampler, LaborSampler])
@pytest.mark.parametrize("name", ["pick", "picker", "fanout"])
@pytest.mark.parametrize("where", ["class", "later", "instance", "first base"])
def test_what_a_subclass_decides_is_what_the_batch_has(base, name, where):
    decide = vars(FirstEdge)[name]
    made = own(base, **{name: decide} if where == "class" else {})
    if where == "later":
        setattr(made, name, decide)
    elif where == "first base":
        made = own(type("Mixin", (), {name: decide}), base)
    sampler = made([3, 5])
    if where == "instance":
        vars(sampler)[name] = partial(decide, sampler)
    like = NeighborSampler if base is LaborSampler and name != "fanout" else base
    graph = graph_of()
    assert sampler.plan(graph).asks
    assert draw(sampler, graph) == draw(like([1, 1]), graph)


@pytest.mark.parametrize("base", [NeighborSampler, SubgraphSampler, LaborSampler])
@pytest.mark.parametrize("on_instance", [False, True])
def test_the_weights_that_a_subclass_gives_count(base, on_instance):
    def weights(self, graph, edge_type, field):
        return edge_weights(graph.adjacency("in", edge_type), field(edge_type, "v"))

    graph = graph_of()
    sampler = own(base, **{} if on_instance else {"weights": weights})([3, 5], prob="w")
    if on_instance:
        vars(sampler)["weights"] = partial(weights, sampler)
    assert sampler.plan(graph).asks
    assert draw(sampler, graph) == draw(base([3, 5], prob="v"), graph)


def test_weights_of_picked_edges_are_in_the_blocks():
    """Of a sampler that says nothing of weights; of types that are picked with them."""

    def pick(self, graph, hop, number, edge_type, field):
        edges = UniformPicker(-1).pick(hop)
        if edge_type[1] == "of":
            return edges
        return replace(edges, weights=edges.positions.float() + number)

    graph = graph_of()
    batch = own(NeighborSampler, pick=pick)([3, 5]).sample(graph, SEEDS)
    for number, block in enumerate(reversed(batch.blocks)):
        for etype in TYPES[:3]:
            relation = block.relations[etype]
            assert relation.num_edges > 0
            if etype[1] == "of":
                assert relation.weights is None
            else:
                assert torch.equal(relation.weights, relation.positions.float() + number)


@every_kind
def test_an_empty_batch_asks_for_nothing(kind):
    graph, sampler = graph_of(), KINDS[kind]
    users = of_own(sampler, Asked)
    nothing = torch.empty(0, dtype=WIDE)
    with stops() as statuses:
        for seeds in {}, {"a": nothing}, {"b": nothing, "a": nothing}:
            assert draw(users, graph, seeds) == draw(sampler, graph, seeds)
    assert not statuses
    alone = {"b": nothing, "a": torch.tensor([39, 39])}
    assert draw(users, graph, alone) == draw(sampler, graph, alone)


class Failing:
    """Raises ``error`` in hop and edge type ``at``, after it has picked."""

    at = error = None

    def pick(self, graph, hop, number, edge_type, field):
        edges = super().pick(graph, hop, number, edge_type, field)
        if (number, edge_type) == self.at:
            raise self.error
        return edges


class Nesting:
    """Samples while it picks: by others, by one that fails, and by one of its own class."""

    depth = 0

    def pick(self, graph, *given):
        edges = super().pick(graph, *given) if self.after else None
        kind = next(self.turns)
        assert draw(KINDS[kind], graph, OTHERS, 5) == self.expected[kind]
        failing = of_own(KINDS[kind], Failing, at=(0, TYPES[1]), error=ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            draw(failing, graph)
        if self.depth == 0:
            deeper = replace(self)
            vars(deeper)["depth"] = 1
            assert draw(deeper, graph, OTHERS, 5) == self.expected[self.kind]
        return edges if self.after else super().pick(graph, *given)


@every_kind
@pytest.mark.parametrize("after", [False, True])
def test_a_picker_samples(kind, after):
    """Before it picks, or while it holds what it has picked."""
    graph, sampler = graph_of(), KINDS[kind]
    expected = {name: draw(other, graph, OTHERS, 5) for name, other in KINDS.items()}
    settings = {"after": after, "turns": cycle(KINDS), "expected": expected, "kind": kind}
    nesting = of_own(sampler, Nesting, **settings)
    for key in 1, 2:
        assert draw(nesting, graph, key=key) == draw(sampler, graph, key=key)


@every_kind
@pytest.mark.parametrize("by_places", [True, False])
def test_an_exception_in_a_picker_passes_and_leaves_nothing_behind(kind, by_places):
    graph, failing = graph_of(), of_own(KINDS[kind], Failing)

    def of_all_kinds():
        return {name: draw(sampler, graph) for name, sampler in KINDS.items()}

    with numbered(by_places=by_places):
        [expected] = in_threads(1, lambda _: of_all_kinds(), [0])
        for number, at in enumerate(product((0, 1), TYPES[:3])):
            error = (ValueError, KeyboardInterrupt)[number % 2]("mine")
            vars(failing).update(at=at, error=error)
            with pytest.raises(type(error)) as caught:
                draw(failing, graph)
            assert caught.value is error and error.__context__ is None
            vars(failing).update(at=None)
            assert draw(failing, graph) == expected[kind]
            assert of_all_kinds() == expected


@pytest.mark.parametrize("name", MORE)
def test_room_grows(name):
    graph, sampler = graph_of(), MORE[name]
    more = {}
    if not isinstance(sampler, SubgraphSampler):
        more["exclude"] = {TYPES[0]: ExcludedEdges(torch.arange(0, 150, 2))}
    expected = draw(sampler, graph, **more)
    assert expected == picked(sampler, graph, **more)
    for again in draw, picked:
        with no_room():
            assert again(sampler, graph, **more) == expected
            assert Scratch.of_this_thread().room > 1


@every_kind
def test_a_picker_that_returns_more_edges_than_there_is_room_for_is_asked_again(kind):
    class All:
        def pick(self, graph, hop, *given):
            return UniformPicker(-1).pick(hop)

    graph, sampler = graph_of(), KINDS[kind]
    users = of_own(sampler, All)
    with stops() as once:
        expected = draw(users, graph)
    with no_room(), stops() as again:
        assert draw(users, graph) == expected
    assert len(again) > len(once) > 0
    if kind != "times":  # of which not all edges may be drawn
        kinds = {"labor": NeighborSampler([-1, -1]), "weighted": NeighborSampler([-1, -1])}
        every = kinds.get(kind, replace(sampler, fanouts=[-1, -1], prob=None))
        assert expected == draw(every, graph)


def test_a_picker_that_samples_gets_the_room_that_it_needs():
    picks = []

    class Sampling:
        def pick(self, graph, *given):
            picks.append(1)
            assert len(picks) < 100
            draw(KINDS["blocks"], graph, {"a": torch.tensor([39])})
            return super().pick(graph, *given)

    expected = draw(KINDS["blocks"], graph_of())
    with no_room():
        assert draw(of_own(KINDS["blocks"], Sampling), graph_of()) == expected


def without_dtypes(value):
    if isinstance(value, list | tuple):
        return [
            without_dtypes(each) for each in value if each not in ("torch.int32", "torch.int64")
        ]
    return value


@settings(max_examples=examples(60), deadline=None)
@given(
    widths=st.sampled_from([each for each in product((NARROW, WIDE), repeat=3) if len(set(each)) > 1]),
    ids=st.tuples(*[st.sampled_from([None, NARROW, WIDE])] * 3),
    kind=st.sampled_from([*KINDS, "all of weight"]),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([None, NARROW]),
)  # fmt: skip
def test_types_with_ids_of_several_widths(widths, ids, kind, key, dtype):
    """The same as by pickers; and but for dtypes, as where all are wide."""
    sampler = MORE[kind]
    graph = graph_of((*widths, NARROW), (*ids, None))
    batch = sample(sampler, graph, key=key, dtype=dtype)
    assert flat(batch) == picked(sampler, graph, key=key, dtype=dtype)
    wide = graph_of((WIDE,) * 4, (*(each and WIDE for each in ids), None))
    assert without_dtypes(flat(batch)) == without_dtypes(draw(sampler, wide, key=key, dtype=dtype))
    for block in getattr(batch, "blocks", ()):
        for etype, width in zip(TYPES, widths, strict=False):
            assert block.relations[etype].positions.dtype == width


@every_kind
def test_arrays_with_gaps(kind):
    def spread(array):
        return None if array is None else torch.stack([array, torch.ones_like(array)], 1)[:, 0]

    graph = graph_of()
    csc = {etype: graph.csc_of(etype) for etype in TYPES}
    other = Graph(
        {
            etype: CSC(spread(own.indptr), spread(own.indices), own.num_src, spread(own.edge_ids))
            for etype, own in csc.items()
        },
        SIZES,
    )
    for etype in TYPES:
        for name, values in graph.edge_fields(etype).items():
            other.set_field(name, values, edge_type=etype)
    other.set_field("t", graph.node_fields("a")["t"], node_type="a")
    assert draw(KINDS[kind], other) == draw(KINDS[kind], graph)


EXCLUDING = {
    **{name: each for name, each in MORE.items() if not isinstance(each, SubgraphSampler)},
    "weighted, replaced": NeighborSampler([3, 5], prob="w", replace=True),
    "shared": NeighborSampler([3, 5], batch_dependency=4),
    "labor, shared": LaborSampler([3, 5], layer_dependency=True, batch_dependency=4),
}


@settings(max_examples=examples(100), deadline=None)
@given(
    name=st.sampled_from(list(EXCLUDING)),
    excluded=st.fixed_dictionaries(
        {},
        optional={
            etype: st.one_of(st.lists(st.integers(0, 149), max_size=40), st.just(range(150)))
            for etype in TYPES[:3]
        }
        | {TYPES[3]: st.just([])},
    ),
    tight=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_excluded_edges(name, excluded, tight, key):
    sampler, graph = EXCLUDING[name], graph_of()
    exclude = {
        etype: ExcludedEdges(torch.tensor(list(positions), dtype=WIDE))
        for etype, positions in excluded.items()
    }
    with no_room() if tight else nullcontext():
        batch = sampler.sample(graph, SEEDS, key, exclude=exclude)
    assert flat(batch) == picked(sampler, graph, key=key, exclude=exclude)
    for block in batch.blocks:
        for etype, positions in excluded.items():
            assert set(positions).isdisjoint(block.relations[etype].positions.tolist())
    # Only draws of the first hop do not depend on what was left out before.
    whole = sampler.sample(graph, SEEDS, key).blocks[-1]
    for etype, relation in batch.blocks[-1].relations.items():
        left_out = set(excluded.get(etype, ()))
        drawn = whole.relations[etype].positions.tolist()
        assert relation.positions.tolist() == [each for each in drawn if each not in left_out]


@pytest.fixture
def on_disk(disk_folder, monkeypatch):
    """A graph of which one type is narrow and on disk, one wide and on disk, one in memory; and the
    same in memory."""
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    monkeypatch.setattr(csc_pages, "_CALM", 2**60)
    know_nothing(monkeypatch)
    graph = graph_of((NARROW, WIDE, NARROW, NARROW), (NARROW, None, WIDE, None))

    def mapped(name, array):
        if array is None:
            return None
        np.save(disk_folder / f"{name}.npy", array.numpy())
        return map_npy(disk_folder / f"{name}.npy")

    csc = {etype: graph.csc_of(etype) for etype in TYPES}
    for etype in TYPES[:2]:
        arrays = (csc[etype].indptr, csc[etype].indices, csc[etype].edge_ids)
        indptr, indices, ids = (mapped(f"{etype[1]} {i}", each) for i, each in enumerate(arrays))
        csc[etype] = CSC(indptr, indices, csc[etype].num_src, ids)
    disk = Graph(csc, SIZES)
    for etype in TYPES:
        for name, values in graph.edge_fields(etype).items():
            disk.set_field(name, values, edge_type=etype)
    disk.set_field("t", graph.node_fields("a")["t"], node_type="a")
    assert [own.disk_pages is not None for own in csc.values()] == [True, True, False, False]
    return graph, disk


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/maps")
@pytest.mark.parametrize("name", MORE)
def test_edges_on_disk_of_which_nothing_is_known(on_disk, name):
    memory, disk = on_disk
    sampler = MORE[name]
    users = of_own(sampler, Asked)
    failing = of_own(sampler, Failing, at=(1, TYPES[1]), error=ZeroDivisionError())
    exclude = {TYPES[0]: ExcludedEdges(torch.arange(0, 150, 2))}
    options = [{}] if isinstance(sampler, SubgraphSampler) else [{}, {"exclude": exclude}]
    for key, more in product((1, 2), options):
        expected = draw(sampler, memory, key=key, **more)
        with stops() as statuses:
            assert draw(sampler, disk, key=key, **more) == expected
        if sampler.kind_of_pick != "caller":
            edges = ASK_ROWS if sampler.kind_of_pick == "shared" else ASK_EDGES
            assert set(statuses) == {ASK_OFFSETS, edges}
        with pytest.raises(ZeroDivisionError):
            draw(failing, disk)
        with stops() as statuses:
            assert draw(users, disk, key=key, **more) == expected
        assert set(statuses) == {PICK}
        for each in sampler, users:
            with no_room():
                assert draw(each, disk, key=key, **more) == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/maps")
@pytest.mark.parametrize("name", MORE)
def test_pages_are_asked_for_before_they_are_read(on_disk, monkeypatch, name):
    memory, disk = on_disk
    sampler = MORE[name]
    asked = defaultdict(set)

    def note(what):
        def need(pages, starts, lengths=1):
            for start, length in np.broadcast(starts, lengths):
                asked[pages, what].update(range(start, start + length))

        monkeypatch.setattr(csc_pages.CSCPages, what, need)

    # As these do not ask the system, nothing is known later on, either.
    note("need_offsets")
    note("need_edges")
    note("need_ids")
    for each in sampler, of_own(sampler, Asked):
        asked.clear()
        batch = sample(each, disk)
        for etype in TYPES[:2]:
            csc = memory.csc_of(etype)
            if isinstance(sampler, SubgraphSampler):
                positions = csc.positions_of(batch.edges[etype].edge_ids)
            else:
                positions = torch.cat([b.relations[etype].positions for b in batch.blocks])
            read = {"need_offsets": csc.ends_at(positions)[1], "need_edges": positions}
            if isinstance(sampler, SubgraphSampler) and csc.edge_ids is not None:
                read["need_ids"] = positions
            # Edges of positive weight, and edges in the order of time, are copies in memory.
            if etype[1] == "to" and sampler.prob is not None and name != "labor weights":
                del read["need_offsets"]
            if etype[1] == "to" and sampler.time is not None:
                del read["need_edges"], read["need_ids"]
            for what, places in read.items():
                assert asked[disk.csc_of(etype).disk_pages, what].issuperset(places.tolist())


@every_kind
def test_threads_with_a_picker_that_fails_now_and_then(kind):
    """And that samples now and then."""

    class Unsteady:
        def pick(self, graph, hop, number, *given):
            edges = super().pick(graph, hop, number, *given)
            if hop.batch_key % 3 == number:
                raise ZeroDivisionError
            if hop.batch_key % 5 == 0:
                draw(KINDS["weighted"], graph, OTHERS)
            return edges

    graph, sampler = graph_of(), KINDS[kind]
    users = of_own(sampler, Unsteady)

    def run(key):
        try:
            return draw(users, graph, key=key)
        except ZeroDivisionError:
            return "failed", draw(sampler, graph, key=key + 100)

    expected = []
    for key in range(40):
        failed = "failed", draw(sampler, graph, key=key + 100)
        expected.append(failed if key % 3 < 2 else draw(sampler, graph, key=key))
    assert in_threads(4, run, range(40)) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda indptr, positions: (indptr[:-1], positions), "indptr must have 3 entries"),
        (lambda indptr, positions: (torch.cat([indptr, indptr[-1:]]), positions), "got 4 entries"),
        (lambda indptr, positions: (indptr + 1, positions), "got 3 entries from"),
        (lambda indptr, positions: (indptr, positions[:-1]), "to its 2 positions"),
        (lambda indptr, positions: (indptr[[0, 2, 1]], positions[:2]), "to its 2 positions|non-dec"),
        (lambda indptr, positions: (indptr, positions + 9), r"positions must be in \[0, 3\), got"),
        (lambda indptr, positions: (indptr, positions - 1), r"positions must be in \[0, 3\), got -1"),
    ],
)  # fmt: skip
def test_what_a_picker_returns_is_checked(change, message):
    class Own(NeighborSampler):
        def pick(self, *given):
            picked = super().pick(*given)
            indptr, positions = change(picked.indptr.clone(), picked.positions.clone())
            return replace(picked, indptr=indptr, positions=positions)

    graph = Graph.from_coo([0, 1, 2], [1, 1, 2], 3)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"a picker's {message}|{message}"):
            Own([2, 2]).sample(graph, torch.tensor([1, 2]))
    assert NeighborSampler([2]).sample(graph, torch.tensor([1])).input_nodes.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_seeds_of_other_integers_give_ids_of_64_bits(dtype):
    graph = Graph.from_coo([0, 1, 2], [1, 1, 2], 3)
    seeds = torch.tensor([1, 2], dtype=dtype)
    for sampler in (NeighborSampler([2]), SubgraphSampler([2])):
        batch = sampler.sample(graph, seeds)
        nodes = batch.input_nodes
        assert (nodes["_N"] if isinstance(nodes, dict) else nodes).dtype == torch.int64
