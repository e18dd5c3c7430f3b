"""PaGraph's claims, measured with pagraph's own commands: figures, tables and picture of
``docs/paper.md``.

Hit rates and parts are counts, the same on every machine. Times are medians over rounds in which
the ways that are compared take turns; training's are those of the setting of ``OMP_WAIT_POLICY``
with the faster epochs (``sides.py``). The tables between the markers of the page are written anew
from ``results/paper.json`` and from the files of the benchmarks of partitioning and
pre-aggregation; ``--tables`` does only that.

Run: ``python benchmarks/paper.py FOLDER...`` (real graphs; the generated one is always there. About
10 minutes with six folders, 4 GiB of memory, 1 GiB of disk.)
"""

import argparse
import json
import shlex
import tempfile
import time
from pathlib import Path
from statistics import median

from report import RESULTS, counted, summarise, write
from sides import SETTINGS, trained

from pagraph import Graph, NeighborSampler
from pagraph.cli import main as pagraph_cli
from pagraph.partition import train_ids
from pagraph.profile import measure_loading

PAGE = Path(__file__).resolve().parent.parent / "docs" / "paper.md"
PICTURE = PAGE.parent / "pictures" / "paper_hit_rates.svg"
GENERATED = "rmat-17"
# What the published training scripts have as their defaults.
SETTING = "--features 600 --classes 60 --fractions 0.65,0.1,0.25"
FANOUT, BATCH, HIDDEN, TRAIN_SHARE = "2,2", 6000, 32, 0.65
FANOUTS = (FANOUT, "10,10")
BUDGETS = ("1%", "5%", "10%", "20%", "40%")
METHODS = ("hash", "pagraph", "auto")
PARTS = 4


class Commands:
    """Runs commands of ``pagraph`` and keeps their words, with the names of folders in place of
    their paths."""

    def __init__(self, place):
        self.place, self.shown = Path(place), []

    def __call__(self, line, graph, *paths):
        """Run ``line``; the graph's folder takes the place of the first ``{}``, files in ``place``
        those of others."""
        names = [str(path) for path in (graph, *(self.place / path for path in paths))]
        self.shown.append("pagraph " + line.format(Path(graph).name, *paths))
        pagraph_cli(shlex.split(line.format(*names)), standalone_mode=False)

    def report(self, line, graph):
        """Run a command that writes JSON, and return that."""
        self(line + " --json {}", graph, "report.json")
        return json.loads((self.place / "report.json").read_text())


def batch_size(graph):
    """6000, or less where an epoch would have fewer than 10 batches: one batch of everything reads
    each row once."""
    return min(BATCH, int(TRAIN_SHARE * graph.num_nodes) // 10)


def hit_rates(commands, folder, graph):
    """Share of the rows that a cache by degree, by ``auto`` and the best possible serve; one row
    for each fan-out."""
    for fanout in FANOUTS:
        line = f"profile {{}} --fanout {fanout} --batch-size {batch_size(graph)} --epochs 3"
        line += (
            f" --policies degree,auto,oracle --budgets {','.join(BUDGETS)}{train_option(folder)}"
        )
        found = commands.report(line, folder)
        rates = {policy: [] for policy in ("degree", "auto", "oracle")}
        for record in found["curve"]:
            rates[record["policy"]].append(record["hit_rate"])
        yield {
            "graph": folder.name,
            "vertices": graph.num_nodes,
            "edges": graph.num_edges,
            "fanout": fanout,
        } | rates


def parts(commands, folder, graph):
    """Balance, replication and hit rates of parts, for each number of hops and method."""
    for hops in (1, 2):
        fanout = ",".join(["2"] * hops)
        line = (
            f"partition {{}} --compare -k {PARTS} --hops {hops} "
            f"{' '.join(f'--method {m}' for m in METHODS)}"
        )
        line += (
            f" --cache 10% --cache-policy degree --fanout {fanout} --batch-size "
            f"{batch_size(graph)} --quiet"
        )
        keys = ("train_balance", "vertex_balance", "replication_factor")
        for found in commands.report(line + train_option(folder), folder)["comparison"]:
            cache = {key: found["cache"][key] for key in ("hit_rate", "unpartitioned_hit_rate")}
            row = {"graph": folder.name, "hops": hops, "method": found["method"]}
            yield row | {key: found[key] for key in keys} | cache


def train_option(folder):
    return "" if folder.name == GENERATED else f" --train-fraction {TRAIN_SHARE}"


def training(commands, folder, rounds, epochs):
    """Seconds of an epoch of training: DGL's loader, ours without and with batches made ahead, in
    turn."""
    common = (
        f"train {{}} --fanout {FANOUT} --batch-size {BATCH} --hidden {HIDDEN} --epochs "
        f"{epochs} --eval-every {epochs}"
    )
    ways = {"dgl": "--baseline dgl", "not_ahead": "--prefetch 0", "ahead": ""}
    stages = ("epoch", "loading", "computing", "share")
    seconds = {
        way: {setting: {stage: [] for stage in stages} for setting in SETTINGS} for way in ways
    }
    for _ in range(rounds):
        for way, option in ways.items():
            line = f"{common} {option}".rstrip()
            commands.shown.append(f"pagraph {line.format(folder.name)}")
            for setting, of_setting in seconds[way].items():
                found = trained(setting, folder, *shlex.split(line)[2:])
                # The first epoch compiles.
                times = {stage: median(found[f"{stage}_seconds"][1:]) for stage in stages[:3]}
                times["share"] = times["loading"] / times["epoch"]
                for stage, took in times.items():
                    of_setting[stage].append(took)
    result = {}
    for way, of_way in seconds.items():
        by_setting = {
            setting: {stage: summarise(runs) for stage, runs in of_setting.items()}
            for setting, of_setting in of_way.items()
        }
        result[way] = counted(by_setting, "epoch")
    ratios = {
        f"{stage}_{way}_over_dgl": summarise(
            [
                ours / theirs
                for ours, theirs in zip(
                    result[way][stage]["runs"], result["dgl"][stage]["runs"], strict=True
                )
            ]
        )
        for stage in ("epoch", "loading")
        for way in ("not_ahead", "ahead")
    }
    return result | ratios


def hidden(graph, rounds):
    """Loading beside computation that leaves the processors alone: a step that only waits, as long
    as a batch takes."""
    settings = {
        "fields": ["feat"],
        "labels": ["label"],
        "batch_size": BATCH,
        "cache": 0,
        "epochs": 3,
    }
    sampler = NeighborSampler([int(k) for k in FANOUT.split(",")])

    def epoch(prefetch, step):
        compute = (lambda _batch: time.sleep(step)) if step else None
        times = measure_loading(
            graph, train_ids(graph), sampler, prefetch=prefetch, compute=compute, **settings
        )
        return times.medians["epoch"], times.medians["waiting"], times.epochs[-1].batches

    runs = []
    for _ in range(rounds):
        alone, _, batches = epoch(0, 0)
        behind, ahead = epoch(0, alone / batches), epoch(2, alone / batches)
        runs.append(
            {"alone": alone, "behind": behind[0], "ahead": ahead[0], "not_hidden": ahead[1] / alone}
        )
    return {key: summarise([run[key] for run in runs]) for key in runs[0]}


def measure(folders, rounds, epochs):
    result = {"hit_rates": [], "parts": []}
    with tempfile.TemporaryDirectory() as place:
        commands = Commands(place)
        generated = Path(place, GENERATED)
        commands(f"generate rmat {{}} --scale 17 --undirected --simple {SETTING}", generated)
        for folder in [generated, *folders]:
            graph = Graph.open(folder)
            result["hit_rates"] += hit_rates(commands, folder, graph)
            result["parts"] += parts(commands, folder, graph)
        result["training"] = training(commands, generated, rounds, epochs)
        result["hidden"] = hidden(Graph.open(generated), rounds)
        draw(commands, generated)
    return result | {"rounds": rounds, "commands": list(dict.fromkeys(commands.shown))}


def draw(commands, folder):
    """The page's picture."""
    import matplotlib

    # Letters instead of outlines: a fifth of the bytes.
    matplotlib.rcParams["svg.fonttype"] = "none"
    PICTURE.parent.mkdir(exist_ok=True)
    line = (
        f"profile {{}} --fanout {FANOUT} --batch-size {BATCH} --policies degree,auto,oracle "
        f"--plot {{}}"
    )
    commands(line, folder, PICTURE.name)
    PICTURE.write_bytes((commands.place / PICTURE.name).read_bytes())


# The tables of the page.


def table(head, rows):
    return "\n".join(
        "| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]
    )


def points(rates):
    return [f"{100 * rate:.1f}" for rate in rates]


def less(ratios):
    return f"{100 * (1 - ratios['median']):.0f} %"


def loading_table(figures):
    ways = {"dgl": "DGL's loader", "not_ahead": "pagraph, `--prefetch 0`", "ahead": "pagraph"}
    rows = []
    for way, name in ways.items():
        stages = [
            f"{1000 * figures[way][stage]['median']:.0f}"
            for stage in ("loading", "computing", "epoch")
        ]
        rows.append([name, *stages, f"{100 * figures[way]['share']['median']:.0f} %"])
    rows = table(
        ["", "loading, ms an epoch", "computing, ms", "epoch, ms", "share of loading"], rows
    )
    loading, computing = (figures["dgl"][stage]["median"] for stage in ("loading", "computing"))
    saved = [less(figures[f"{what}_ahead_over_dgl"]) for what in ("loading", "epoch")]
    return (
        f"{rows}\n\nLoading takes {saved[0]} less time than with DGL's loader, the epoch "
        f"{saved[1]} less.\n"
        f"A device that computes {computing / (loading * 3 / 7):.1f} times as fast as these cores "
        "would bring "
        "the share of DGL's loader to 70 %."
    )


def hidden_table(figures):
    ways = {
        "alone": "loading alone",
        "behind": "a batch, then a step that waits as long",
        "ahead": "batches made ahead, the same step",
    }
    rows = [[name, f"{figures[way]['median']:.3f}"] for way, name in ways.items()]
    return (
        f"{table(['', 'seconds an epoch'], rows)}\n\n{less(figures['not_hidden'])} of the "
        "loading is hidden."
    )


def few_rows_table(rows):
    shown = [
        [r["graph"], f"{r['vertices']:,}", f"{r['edges']:,}", r["fanout"], *points(r["degree"])]
        for r in rows
    ]
    return table(["graph", "vertices", "edges", "fan-out", *BUDGETS], shown)


def hit_rate_table(rows):
    policies, budgets = ("degree", "auto", "oracle"), ("5%", "10%", "20%")
    shown = []
    for row in rows:
        cells = [
            " / ".join(points(row[p][BUDGETS.index(budget)] for p in policies))
            for budget in budgets
        ]
        least = [
            f"{100 * min(a / b for a, b in zip(row[p], row['oracle'], strict=True)):.0f} %"
            for p in policies[:2]
        ]
        shown.append([row["graph"], row["fanout"], *cells, *least])
    return table(
        ["graph", "fan-out", *budgets, "degree, least share", "`auto`, least share"], shown
    )


def parts_table(rows):
    shown = []
    for graph, hops in dict.fromkeys((row["graph"], row["hops"]) for row in rows):
        of_method = {
            row["method"]: row for row in rows if (row["graph"], row["hops"]) == (graph, hops)
        }
        ours = of_method["pagraph"]
        factors = [f"{of_method[method]['replication_factor']:.2f}" for method in METHODS]
        caches = points(
            [*(of_method[method]["hit_rate"] for method in METHODS), ours["unpartitioned_hit_rate"]]
        )
        balances = [f"{ours['train_balance']:.3f}", f"{ours['vertex_balance']:.2f}"]
        shown.append([graph, hops, *balances, *factors, *caches])
    head = [
        "graph",
        "hops",
        "balance, trained",
        "balance, held",
        *(f"replication, {m}" for m in METHODS),
    ]
    return table([*head, *(f"hits, {m}" for m in METHODS), "hits, one process"], shown)


def machine(figures):
    where = figures["machine"]
    return (
        f"{where['processor']}, {where['cores']} cores, {where['memory_gib']:.0f} GiB, no GPU; "
        f"Python {where['python']}, torch {where['torch']}"
    )


def original_table(figures):
    shown, of_method = (
        [],
        ([r for r in figures["rows"] if r["method"] == m] for m in ("original", "pagraph")),
    )
    for original, ours in zip(*of_method, strict=True):
        name = (
            f"RMAT scale {ours['scale']}, {ours['edges']:,} edges, {ours['hops']} "
            f"hop{'s' * (ours['hops'] > 1)}"
        )
        factors = [f"{row['replication_factor']:.4f}" for row in (original, ours)]
        shown.append([name, *factors, f"{ours['speedup']:.0f}"])
    head = ["graph", "replication, published algorithm", "replication, `pagraph`", "times as fast"]
    return f"{table(head, shown)}\n\n({machine(figures)}.)"


def preaggregation_table(figures):
    rows = []
    for model in ("sage", "gcn"):
        before, after = figures[model]["ordinary"], figures[model]["preaggregated"]
        faster = [
            f"{before[key]['median'] / after[key]['median']:.1f}"
            for key in ("seconds", "loading_seconds")
        ]
        accuracy = points([before["test_accuracy"], after["test_accuracy"]])
        rows.append([model, f"{figures[model]['preaggregate']['seconds']:.2f}", *faster, *accuracy])
    rows = table(["model", "seconds to sum up", "epoch, times as fast", "loading, times as fast",
                  "accuracy before, %", "accuracy after, %"], rows)  # fmt: skip
    factors = sorted(figures["replication_factor"].items(), reverse=True)
    held = ", ".join(
        f"{factor:.2f} with {hops} hop{'s' * (hops != '1')}" for hops, factor in factors
    )
    parts_ = f"Replication factor of {figures['options']['parts']} parts of that graph: {held}."
    return f"{rows}\n\n{parts_} ({machine(figures)}.)"


def tables():
    """Marker to the text that belongs there."""
    figures, partitioning, preaggregation = (
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("paper", "partitioning", "preaggregation")
    )
    return {
        "machine": f"{machine(figures)}; medians of {figures['rounds']} rounds.",
        "loading": loading_table(figures["training"]),
        "few-rows": few_rows_table(figures["hit_rates"]),
        "hit-rates": hit_rate_table(figures["hit_rates"]),
        "hidden": hidden_table(figures["hidden"]),
        "parts": parts_table(figures["parts"]),
        "original": original_table(partitioning),
        "preaggregation": preaggregation_table(preaggregation),
    }


def fill(page):
    """The page's text with the tables of today."""
    for name, text in tables().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument(
        "--epochs", type=int, default=4, help="of each training run, the first left out [4]"
    )
    parser.add_argument("--tables", action="store_true", help="only write the page's tables anew")
    options = parser.parse_args()
    if not options.tables:
        write("paper", measure(options.folders, options.rounds, options.epochs))
    PAGE.write_text(fill(PAGE.read_text()))


if __name__ == "__main__":
    main()
