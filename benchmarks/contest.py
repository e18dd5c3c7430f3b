"""Loaders that run in turn: what the benchmarks against DGL's and PyG's loaders have in common.

Loaders are made once, as for training. Each runs one whole epoch per round, round after round, in
one process, after one round that is not counted; the figure is the median over the rounds, and the
ratio is taken against the best of the peer's loaders of the same case.
"""

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pagraph.dgl

import dgl  # isort: skip
from report import summarise  # isort: skip

MOST_THREADS = "pagraph, 2 threads"


@dataclass(frozen=True)
class Case:
    """Loaders to compare.

    Attributes:
        loaders: Name to a function that makes a loader; those of the peer begin with its name.
        count: What a batch holds, by name, for the table; reads whatever of the batch is lazy.
        peer: Name of the library that ours are compared with.
    """

    loaders: dict[str, Callable[[], Any]]
    count: Callable[[Any], dict[str, int]]
    peer: str = "dgl"


def arguments(description, **defaults):
    """The command line's options, of the types of their defaults, False for a switch; rounds are
    always one."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {**defaults, "rounds": 5}.items():
        kind = (
            {"action": "store_true"}
            if default is False
            else {"type": type(default), "help": f"[{default}]"}
        )
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **kind)
    return parser.parse_args()


def loaders(graph, indices, sampler, batch_size, *, ours=None):
    """DGL's loader with 0 and 2 workers, and pagraph's three ways; ``ours`` is pagraph's sampler if
    it is another."""

    def theirs(workers):
        return lambda: dgl.dataloading.DataLoader(
            graph, indices, sampler, batch_size=batch_size, shuffle=True, num_workers=workers
        )

    def pagraphs(**options):
        return lambda: pagraph.dgl.DataLoader(
            graph, indices, ours or sampler, batch_size=batch_size, shuffle=True, **options
        )

    return {
        "dgl, 0 workers": theirs(0),
        "dgl, 2 workers": theirs(2),
        "pagraph, no thread": pagraphs(prefetch=0),
        "pagraph, 1 thread": pagraphs(num_workers=1),
        MOST_THREADS: pagraphs(num_workers=2),
    }


def count_nodes(*names):
    """Counts a batch of node-wise sampling, after reading the columns ``names`` of its input
    nodes."""

    def count(batch):
        input_nodes, _, blocks = batch
        rows = read_rows(input_nodes, blocks[0], names)
        return {"batches": 1, "edges": sum(block.num_edges() for block in blocks), "rows": rows}

    return count


def read_rows(input_nodes, block, names):
    """Number of input nodes, whose columns ``names`` are read and compared with it, type by
    type."""
    by_type = input_nodes if isinstance(input_nodes, dict) else {block.srctypes[0]: input_nodes}
    for ntype, ids in by_type.items():
        columns = block.srcnodes[ntype].data
        for name in names:
            assert name not in columns or columns[name].shape[0] == len(ids)
    return sum(len(ids) for ids in by_type.values())


def run(cases, rounds):
    """Seconds and counts of every loader of every case, all in turn; case name to a result for the
    JSON."""
    made = {
        key: {name: make() for name, make in case.loaders.items()} for key, case in cases.items()
    }
    seconds = {key: {name: [] for name in of_case} for key, of_case in made.items()}
    counts, stages = {key: {} for key in cases}, {}
    for round_ in range(rounds + 1):
        for key, case in cases.items():
            for name, loader in made[key].items():
                took, counts[key][name] = _epoch(loader, case.count)
                if round_:
                    seconds[key][name].append(took)
                if name.endswith("2 threads"):
                    stages[key] = dict(loader.stats.epochs[-1].seconds)
    return {
        key: {
            "loaders": _compare(seconds[key], counts[key], cases[key].peer),
            "stage_seconds_of_2_threads": stages.get(key),
        }
        for key in cases
    }


def _epoch(loader, count):
    total = Counter()
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DGL's advice on CPU affinity, each epoch
        for batch in loader:
            total.update(count(batch))
    return time.perf_counter() - begin, dict(total)


def _compare(seconds, counts, peer):
    result = {name: summarise(runs) | counts[name] for name, runs in seconds.items()}
    peers = [r["median"] for name, r in result.items() if name.startswith(peer)]
    for r in result.values() if peers else ():
        r[f"times_as_fast_as_{peer}"] = min(peers) / r["median"]
    return result


def show(results, graph, peer="dgl"):
    """Print one table for each case."""
    for key, result in results.items():
        print(f"\n{key} ({graph.num_nodes():,} vertices, {graph.num_edges():,} edges)")
        for name, r in result["loaders"].items():
            times = f"{r['median']:7.3f} s  ({r['min']:.3f} to {r['max']:.3f})"
            rest = (
                f"{r['edges']:,} edges  {r['rows']:,} rows  "
                f"{r['rows'] / max(1, r['batches']):,.0f} rows a batch"
            )
            print(f"  {name:20s} {times}  {r[f'times_as_fast_as_{peer}']:5.2f} x  {rest}")
        stages = {
            stage: round(took, 3) for stage, took in result["stage_seconds_of_2_threads"].items()
        }
        print(f"  stages of 2 threads: {stages}")
