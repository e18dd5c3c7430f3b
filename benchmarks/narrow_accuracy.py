"""Test accuracy with features in fewer bytes: GraphSAGE on the mean features of in-neighbours of
real graphs.

The features of these graphs are bags of words of zeros and ones, which are exact in 16 bits and in
``int8``. The means over in-neighbours that ``pagraph preaggregate`` writes are not, and the first
layer takes these. Runs of a seed differ in the form alone; the accuracy is that after the last
epoch, with all neighbours.

Run: ``python benchmarks/narrow_accuracy.py DATA``, a folder of graph folders (about 20 minutes, 3
GiB of memory).
"""

import argparse
import statistics
from pathlib import Path

import pagraph.dgl  # noqa: F401  (before dgl)
from pagraph.datasets import open_graph
from pagraph.features import NarrowRows
from pagraph.options.names import SUMS
from pagraph.train import TrainOptions
from pagraph.train.loop import train
from pagraph.train.preaggregation import FEATURES, NeighborSums
from pagraph.train.task import make_task

from report import write  # isort: skip

# Epochs and learning rate. Amazon with a rate of 0.01 after 10 epochs: 60 % with a deviation of 13
# between seeds.
GRAPHS = {
    "cora": (20, 0.01),
    "amazon-computers": (50, 0.003),
    "facebook-pages": (3, 0.01),
    "coauthor-cs": (3, 0.01),
}
FORMS = (None, "float16", "bfloat16", "int8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of the graphs")
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="[%(default)s]")
    parser.add_argument("--seeds", type=int, default=5, help="[%(default)s]")
    parser.add_argument(
        "--fanout", type=int, default=5, help="of the one hop that is sampled [%(default)s]"
    )
    parser.add_argument("--out", type=Path, help="folder of the results [benchmarks/results]")
    options = parser.parse_args()
    result = {"seeds": options.seeds, "fanout": options.fanout, "graphs": {}}
    for name in options.graphs.split(","):
        result["graphs"][name] = measure(options.data / name, *GRAPHS[name], options)
    write("narrow_accuracy", result, *[options.out] if options.out else [])


def measure(folder, epochs, lr, options):
    """Accuracies of one graph by form, and the largest change of a mean."""
    graph = open_graph(folder)
    sums = NeighborSums(graph, model="sage")[:]
    fields = {FEATURES: graph.ndata[FEATURES], SUMS["sage"]: sums}
    result = {
        "vertices": graph.num_nodes,
        "width": sums.shape[1],
        "epochs": epochs,
        "lr": lr,
        "forms": {},
    }
    for form in FORMS:
        for name, values in fields.items():
            graph.ndata[name] = values if form is None else NarrowRows.of(values, form)
        runs = [accuracy(graph, epochs, lr, seed, options) for seed in range(options.seeds)]
        changes = (
            {}
            if form is None
            else {name: change(graph.ndata[name], rows) for name, rows in fields.items()}
        )
        mean, deviation = statistics.mean(runs), statistics.stdev(runs)
        result["forms"][form or "float32"] = {
            "mean": mean,
            "deviation": deviation,
            "runs": runs,
            "change": changes,
        }
        print(
            f"{folder.name:18} {form or 'float32':9} {100 * mean:.2f} +- {100 * deviation:.2f} "
            f"{changes}",
            flush=True,
        )
    return result


def accuracy(graph, epochs, lr, seed, options):
    """Test accuracy of one run; what is not said here are the defaults of ``pagraph train``."""
    settings = {
        "fanout": (options.fanout,),
        "epochs": epochs,
        "eval_every": epochs,
        "lr": lr,
        "seed": seed,
    }
    run = TrainOptions(**settings, device="cpu")
    return train(make_task(graph, run), run).test_accuracy


def change(narrow, values):
    """The largest change of a value."""
    step, most = 1024, 0.0
    for begin in range(0, len(values), step):
        some = values[begin : begin + step]
        most = max(most, float((narrow[begin : begin + step] - some).abs().max()))
    return most


if __name__ == "__main__":
    main()
