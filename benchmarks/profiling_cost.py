"""What profiling an epoch costs next to sampling it.

"sampling" draws the batches of an epoch with as many threads, into recycled memory, and drops them.
"counting" is what ``hit_rate_curve`` takes to count an epoch's reads, and "summing" to make 20
budgets of it for each of the default policies. What rankings take, by policy, is given apart: each
is made once, however many epochs are measured. Rounds are taken in turn.

Run: ``python benchmarks/profiling_cost.py`` (about 2 minutes, 2 GiB of memory).
"""

import argparse
import time

from report import summarise, write
from rmat_graph import random_ids

from pagraph import NeighborSampler
from pagraph.datasets import rmat
from pagraph.profile import hit_rate_curve
from pagraph.ranking.presample import count_accesses, run_tickets
from pagraph.seeds.order import SeedOrder
from pagraph.system.buffers import BufferPools


def sample(graph, seeds, sampler, options):
    """Draw an epoch's batches and drop them."""
    order = SeedOrder(seeds, options.batch_size, shuffle=True, seed=0)
    pools = BufferPools(2 * options.threads)
    plan = order.plan(0)
    tickets = (order.ticket(plan, index) for index in range(len(order)))
    run_tickets(
        lambda t: sampler.sample(graph, t.seeds, t.key, pools=pools), tickets, options.threads
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    graph = rmat(options.scale, num_edges=options.edges, undirected=True, simple=True, seed=0)
    seeds = random_ids(graph.num_nodes, options.seeds)
    sampler = NeighborSampler([int(f) for f in options.fanout.split(",")])
    settings = {"batch_size": options.batch_size, "seed": 0, "threads": options.threads}
    runs = {name: [] for name in ("sampling", "counting", "summing", "ranking")}
    for number in range(options.rounds + 1):
        begin = time.perf_counter()
        sample(graph, seeds, sampler, options)
        seconds = {"sampling": time.perf_counter() - begin}
        curve = hit_rate_curve(graph, seeds, sampler, **settings)
        seconds |= curve.seconds
        for name in runs:
            runs[name] += [seconds[name]] if number else []  # the first round compiles
    result = {name: summarise(figures) for name, figures in runs.items()}
    result["pass_over_sampling"] = summarise(
        [
            (c + s) / p
            for c, s, p in zip(runs["counting"], runs["summing"], runs["sampling"], strict=True)
        ]
    )
    # Other programs only add time: the fastest rounds say most.
    fastest = {name: min(figures) for name, figures in runs.items()}
    result["pass_over_sampling_fastest"] = (fastest["counting"] + fastest["summing"]) / fastest[
        "sampling"
    ]
    counts = count_accesses(graph, seeds, sampler, **settings)
    result["counter_bytes_per_vertex"] = counts.nbytes / graph.num_nodes
    result["ranking_seconds"] = curve.ranking_seconds
    for name, figures in result.items():
        print(
            f"{name:26s}", figures.get("median", figures) if isinstance(figures, dict) else figures
        )
    write(
        "profiling_cost",
        {"options": vars(options), "graph": repr(graph), "policies": curve.policies, **result},
    )


if __name__ == "__main__":
    main()
