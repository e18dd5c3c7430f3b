"""Exceptions in the user's functions: they arrive as they are, threads end, files stay whole, the
loader goes on."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import read_graph, sbm, write_graph
from pagraph.dgl import DataLoader, to_dgl
from pagraph.partition import partition_graph, write_partition
from pagraph.profile import hit_rate_curve
from pagraph.pyg import NeighborLoader as PygLoader
from pagraph.pyg import to_pyg
from pagraph.ranking import resolve_policy
from pagraph.train.preaggregation import preaggregate

from .loaders import FANOUTS, check_no_threads, draw_options, graph_of
from .worker import Case

import dgl  # isort: skip  (pagraph.dgl makes it importable)


class UserError(Exception):
    """Raised by the user's function; of two arguments, so that nobody makes another of it."""

    def __init__(self, number: int, word: str) -> None:
        super().__init__(number, word)


class Fails:
    """A function of the user's that returns its first argument, and raises at one call."""

    def __init__(self, at: int) -> None:
        self.calls, self.at, self.error = 0, at, UserError(at, "mine")

    def __call__(self, value: Any = None, *_: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            self.raise_it()
        return value

    def raise_it(self) -> None:
        raise self.error


@dataclasses.dataclass(frozen=True)
class FailingSampler(NeighborSampler):
    """A sampler of the core, one function of which is the user's."""

    user: Any = None

    def sample(self, *arguments: Any, **options: Any) -> Any:
        self.user()
        return super().sample(*arguments, **options)


class FailingDglSampler(dgl.dataloading.NeighborSampler):
    def __init__(self, user: Fails) -> None:
        super().__init__(FANOUTS)
        self.user = user

    def sample(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        self.user()
        return super().sample(g, seed_nodes, exclude_eids)


class FailingOrder(torch.utils.data.Sampler):
    def __init__(self, user: Fails) -> None:
        self.user = user

    def __iter__(self) -> Any:
        return (self.user(number) for number in range(120))

    def __len__(self) -> int:
        return 120


def edge_loader(graph: Graph, user: Fails, **options: Any) -> Any:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(FANOUTS), exclude=lambda ids: user(ids)
    )
    return DataLoader(to_dgl(graph), torch.arange(120), sampler, **options)


def policy_loader(graph: Graph, user: Fails, **options: Any) -> Any:
    def policy(*workload: Any) -> Any:
        user()
        return resolve_policy("degree")(*workload)

    return Loader(
        graph,
        range(120),
        NeighborSampler(FANOUTS),
        fields=["feat"],
        **{**options, "cache": 0.5, "cache_policy": policy},
    )


def pyg_order_loader(graph: Graph, user: Fails, **options: Any) -> Any:
    del options["shuffle"]
    return PygLoader(
        to_pyg(graph), FANOUTS, input_nodes=torch.arange(120), sampler=FailingOrder(user), **options
    )


def pyg_loader(graph: Graph, **options: Any) -> Any:
    return PygLoader(to_pyg(graph), FANOUTS, input_nodes=torch.arange(120), **options)


LOADERS: dict[str, Callable[..., Any]] = {
    "sampler": lambda graph, user, **options: Loader(
        graph, range(120), FailingSampler(FANOUTS, user=user), **options
    ),
    "policy": policy_loader,
    "dgl sampler": lambda graph, user, **options: DataLoader(
        to_dgl(graph), torch.arange(120), FailingDglSampler(user), **options
    ),
    "dgl exclude": edge_loader,
    "pyg transform": lambda graph, user, **options: pyg_loader(graph, transform=user, **options),
    "pyg sampler transform": lambda graph, user, **options: pyg_loader(
        graph, transform_sampler_output=user, **options
    ),
    "pyg order": pyg_order_loader,
}
"""Loaders with one function of the user's."""

WRITERS: dict[str, Callable[..., Any]] = {
    "write_graph": lambda samples, out, user: write_graph(graph_of(samples), out, progress=user),
    "write_partition": lambda samples, out, user: write_partition(
        partition_graph(graph_of(samples), 2, hops=1, progress=user), out, progress=user
    ),
    "preaggregate": lambda samples, out, user: preaggregate(
        graph_of(samples), out, model="gcn", progress=user
    ),
    "read_graph": lambda samples, out, user: read_graph(samples / "edges.csv", progress=user),
    "sbm": lambda samples, out, user: sbm(500, progress=user),
    "hit_rate_curve": lambda samples, out, user: hit_rate_curve(
        graph_of(samples), torch.arange(120), NeighborSampler(FANOUTS), batch_size=10, progress=user
    ),
}
"""Calls that report their progress to a function of the user's."""


def trial(case: Case) -> None:
    name = case.choose("place", [*LOADERS, *WRITERS])
    user = Fails(case.rng.choice([1, 1, 2, 3, 5]))
    case.done.append(f"raises at call {user.at}")
    try:
        if name in LOADERS:
            read(case, LOADERS[name], user)
        else:
            WRITERS[name](case.samples, case.folder / "out", user)
    except UserError as error:
        frames = traceback.extract_tb(error.__traceback__)
        assert error is user.error, "another object"
        assert any(frame.name == "raise_it" for frame in frames), "without its own traceback"
        case.done.append("raised")
    assert user.calls < user.at or case.done[-1] == "raised", "the exception is lost"
    check_no_threads()
    if name in WRITERS and case.done[-1] == "raised":
        assert not [path for path in case.folder.iterdir() if path.name != "failure.txt"], (
            "something was written"
        )
        WRITERS[name](case.samples, case.folder / "out", Fails(0))


def read(case: Case, make: Callable[..., Any], user: Fails) -> None:
    """A pass that fails; and then, in the same loader, one that does not."""
    options = draw_options(case)
    graph = graph_of(case.samples)
    loader = make(graph, user, **options)
    try:
        count = len([*loader])
    except UserError:
        count = len([*loader])
        assert count == len([*make(graph, Fails(0), **options)]), "the next pass is shorter"
        raise
    assert count
