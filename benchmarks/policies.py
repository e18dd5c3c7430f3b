"""Cache policies next to the best possible: hit rates over graphs, train sets, fan-outs and
budgets.

Every policy ranks once, before the measured epochs; ``adaptive`` after it has seen one. *ideal*
ranks by the mean of 30 other epochs, *oracle* by each measured epoch itself. Batches hold at most
1000 seeds, epochs at least 20 batches.

Run: ``python benchmarks/policies.py FOLDER...`` (folders with an ``adj.npz`` or a manifest;
directed graphs are also sampled the other way round). Generated graphs are always there.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from report import write

from pagraph import Graph, NeighborSampler
from pagraph.datasets import rmat, sbm
from pagraph.ranking import apply_policy, resolve_policy
from pagraph.ranking.auto import Learned
from pagraph.ranking.presample import count_accesses

FANOUTS = {"25,10": [25, 10], "15,10,5": [15, 10, 5], "2,2": [2, 2], "full": [-1, -1]}
BUDGETS = [0.05, 0.1, 0.2]
POLICIES = ["degree", "presample", "presample:3", "vip", "auto"]
PUBLISHED = ["degree", "presample", "vip"]
MEASURED, IDEAL = 3, 30


def graphs(folders):
    """Name and graph, one at a time."""
    for folder in folders:
        graph = Graph(Graph.open(folder).csc)
        yield folder.name, graph
        turned = graph.reverse()
        if not torch.equal(turned.csc.indptr, graph.csc.indptr):
            yield f"{folder.name} reversed", turned
    yield "rmat, undirected", rmat(17, num_edges=1 << 20, undirected=True, simple=True, seed=0)
    yield "rmat, directed", rmat(17, num_edges=1 << 21, seed=0)
    yield (
        "block model",
        Graph(sbm(50_000, num_edges=500_000, num_classes=10, num_features=1, seed=0).csc),
    )


def rates(ranking, measured):
    """Hit rate of each budget, the mean of the measured epochs."""
    ids = ranking.ids[: int(BUDGETS[-1] * len(measured[0]))]
    hits = torch.stack(
        [torch.cat([reads.new_zeros(1), reads[ids].cumsum(0)]) / reads.sum() for reads in measured]
    )
    return [float(hits[:, int(share * len(measured[0]))].mean()) for share in BUDGETS]


def promised(ranking):
    """Hit rate of each budget by the ranking's own expectation."""
    total = float(ranking.scores.sum())
    return [
        float(ranking.scores[: int(share * len(ranking.ids))].sum()) / total for share in BUDGETS
    ]


def workload(graph, seeds, fanouts):
    """All figures of one graph, train set and fan-out."""
    sampler, batch_size = NeighborSampler(fanouts), max(1, min(1000, len(seeds) // 20))

    def reads(epochs, seed=0):
        counts = count_accesses(
            graph, seeds, sampler, batch_size=batch_size, seed=seed, epochs=epochs
        )
        return counts, counts.reads(graph.only_node_type).double()

    def ranked(policy):
        begin = time.perf_counter()
        ranking = apply_policy(
            resolve_policy(policy), graph, seeds, sampler, 0, batch_size=batch_size
        )
        return ranking[graph.only_node_type], time.perf_counter() - begin

    begin = time.perf_counter()
    first, _ = reads([0])
    row = {
        "batches": first.batches,
        "epoch_s": time.perf_counter() - begin,
        "hit_rates": {},
        "ranking_s": {},
    }
    measured = [reads([epoch])[1] for epoch in range(1, 1 + MEASURED)]
    for policy in POLICIES:
        ranking, row["ranking_s"][policy] = ranked(policy)
        row["hit_rates"][policy] = rates(ranking, measured)
        if policy == "auto":
            row["promised"] = promised(ranking)
    ranking, row["ranking_s"]["adaptive"] = ranked(Learned(first, first.batches))
    row["hit_rates"]["adaptive"], row["promised_adaptive"] = (
        rates(ranking, measured),
        promised(ranking),
    )
    ideal = reads(range(10**6, 10**6 + IDEAL))[1]
    row["hit_rates"]["ideal"] = rates(by_reads(ideal), measured)
    oracle = [rates(by_reads(epoch), [epoch]) for epoch in measured]
    row["hit_rates"]["oracle"] = np.mean(oracle, axis=0).tolist()
    return row


class by_reads:
    """A ranking by known reads."""

    def __init__(self, reads):
        self.ids = torch.from_numpy(np.argsort(-reads.numpy(), kind="stable"))


def summary(rows):
    """What holds over all workloads and budgets."""
    table = {
        policy: np.array([row["hit_rates"][policy] for row in rows])
        for policy in rows[0]["hit_rates"]
    }
    best = np.max([table[policy] for policy in PUBLISHED], axis=0)
    result = {}
    for policy in [*POLICIES, "adaptive"]:
        share = table[policy] / table["ideal"]
        result[policy] = {
            "mean_share_of_ideal": float(share.mean()),
            "least_share_of_ideal": float(share.min()),
            "below_95_percent": int((share < 0.95).sum()),
            "worst_against_best_published": float((table[policy] - best).min()),
            "more_than_1_point_below_published": int((table[policy] < best - 0.01).sum()),
            "more_than_1_point_below_auto": int((table[policy] < table["auto"] - 0.01).sum()),
            "of": share.size,
        }
    for policy, key in (("auto", "promised"), ("adaptive", "promised_adaptive")):
        error = np.array([row[key] for row in rows]) - table[policy]
        result[policy]["worst_prediction"] = float(np.abs(error).max())
        result[policy]["predictions_off_by_more_than_2_points"] = int((np.abs(error) > 0.02).sum())
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--train-shares", type=float, nargs="+", default=[0.01, 0.1, 0.65])
    options = parser.parse_args()
    rows = []
    for name, graph in graphs(options.folders):
        for share in options.train_shares:
            generator = torch.Generator().manual_seed(0)
            seeds = torch.randperm(graph.num_nodes, generator=generator)[
                : max(1, int(share * graph.num_nodes))
            ]
            for fanout, fanouts in FANOUTS.items():
                row = {"graph": name, "train_share": share, "fanout": fanout} | workload(
                    graph, seeds, fanouts
                )
                rows.append(row)
                shown = {
                    p: row["hit_rates"][p][1]
                    for p in ["degree", "presample", "vip", "auto", "adaptive", "ideal"]
                }
                print(
                    f"{name:26s} {share:4.0%} {fanout:8s}",
                    "  ".join(f"{p} {r:.3f}" for p, r in shown.items()),
                )
    write("policies", {"budgets": BUDGETS, "summary": summary(rows), "rows": rows})


if __name__ == "__main__":
    main()
