"""Loaders that run in turn: what the benchmarks against DGL's and PyG's loaders have in common.

Loaders are made once, as for training. Each runs one whole epoch per round, round after round, in
each setting of ``OMP_WAIT_POLICY`` (``sides.py``), after one round that is not counted. The figure
is the median over the rounds in the setting in which the loader is faster, and the ratio is taken
against the best of the peer's loaders of the same case.
"""

import argparse
import importlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import pagraph.dgl

import dgl  # isort: skip
import report  # isort: skip
from sides import Sides  # isort: skip

MOST_THREADS = "pagraph, 2 threads"


@dataclass(frozen=True)
class Case:
    """Loaders to compare.

    Attributes:
        loaders: Name to a function that makes a loader; those of the peer begin with its name.
        count: What a batch holds, by name, for the table; reads whatever of the batch is lazy.
        peer: Name of the library that ours are compared with.
        torch_threads: Threads of torch's functions; 0: as many as torch takes by itself.
    """

    loaders: dict[str, Callable[[], Any]]
    count: Callable[[Any], dict[str, int]]
    peer: str = "dgl"
    torch_threads: int = 0


def arguments(description, **defaults):
    """The command line's options, of the types of their defaults, False for a switch; rounds and
    the folder of the result are always among them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {**defaults, "rounds": 5, "output": str(report.RESULTS)}.items():
        kind = (
            {"action": "store_true"}
            if default is False
            else {"type": type(default), "help": f"[{default}]"}
        )
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **kind)
    return parser.parse_args()


def write(name, options, result):
    """Write ``NAME.json`` with the options into the folder that they name."""
    shown = {option: value for option, value in vars(options).items() if option != "output"}
    report.write(name, {"options": shown} | result, Path(options.output))


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


class Turns:
    """The loaders of a script's cases, in the process that runs them.

    Args:
        script: Name of the module whose ``cases`` makes the cases of the options, and facts of
            what they are about.
        options: The command line's.
    """

    def __init__(self, script, options):
        make = importlib.import_module(script).cases
        self._facts, self._cases = make(argparse.Namespace(**options))
        self._torch_threads = torch.get_num_threads()

    def told(self):
        """The facts, and of each case its peer and the names of its loaders."""
        cases = {key: (case.peer, list(case.loaders)) for key, case in self._cases.items()}
        return {"facts": self._facts, "cases": cases}

    def begin(self, cases):
        """Make the loaders of these cases, and let go of others."""
        self._made = {}
        for key in cases:
            of_case = self._cases[key].loaders
            self._made[key] = {name: make() for name, make in of_case.items()}

    def epoch(self, case, name):
        """Seconds of an epoch, what was counted, and where our threads' time went."""
        of_case, loader = self._cases[case], self._made[case][name]
        torch.set_num_threads(of_case.torch_threads or self._torch_threads)
        total = Counter()
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DGL's advice on CPU affinity, each epoch
            for batch in loader:
                total.update(of_case.count(batch))
        seconds = time.perf_counter() - begin
        if name.endswith("2 threads"):
            total["stages"] = dict(loader.stats.epochs[-1].seconds)
        return seconds, total


def run(script, options, *, apart=False):
    """Run every loader of a script's cases in turn, in both settings.

    Args:
        script: Path of the script; its ``cases(options)`` returns facts and cases by name.
        options: The command line's, with ``rounds``.
        apart: Whether the loaders of a case are made and run after those of the case before are
            gone, and not in turn with them.

    Returns:
        The facts, and case name to a result for the JSON.
    """
    with Sides("contest:Turns", script=Path(script).stem, options=vars(options)) as sides:
        told = sides.ask("told")["default"]
        cases = told["cases"]
        result = {}
        for group in [[key] for key in cases] if apart else [list(cases)]:
            sides.ask("begin", cases=group)
            names = {key: cases[key][1] for key in group}
            for key, loaders in _in_turn(sides, names, options.rounds).items():
                result[key] = {"loaders": _compare(loaders, cases[key][0])}
    return told["facts"], result


def _in_turn(sides, names, rounds):
    """Case to loader to its figures; the loader's last epoch says what its batches hold."""
    seconds = {}
    last = {}
    for round_ in range(rounds + 1):
        for key, loaders in names.items():
            for name in loaders:
                for setting, (took, total) in sides.ask("epoch", case=key, name=name).items():
                    last[key, name, setting] = total
                    runs = seconds.setdefault((key, name, setting), [])
                    if round_:
                        runs.append(took)
    result = {key: {} for key in names}
    for key, loaders in names.items():
        for name in loaders:
            of = {
                setting: report.summarise(seconds[key, name, setting]) | last[key, name, setting]
                for setting in sides.by_setting
            }
            result[key][name] = report.counted(of)
    return result


def _compare(loaders, peer):
    """The figures with how many times as fast as the peer's best each loader is."""
    peers = [r["median"] for name, r in loaders.items() if name.startswith(peer)]
    for r in loaders.values() if peers else ():
        r[f"times_as_fast_as_{peer}"] = min(peers) / r["median"]
    return loaders


def show(results, facts):
    """Print one table for each case: what counts, both settings, the ratio to the best peer."""
    for key, result in results.items():
        print(f"\n{key} {facts}")
        for name, r in result["loaders"].items():
            settings = ", ".join(f"{name} {of['median']:.3f}" for name, of in r["settings"].items())
            ratios = (of for what, of in r.items() if what.startswith("times_as_fast"))
            shown = "".join(f"{ratio:6.2f} x" for ratio in ratios)
            rest = (
                f"{r['edges']:,} edges  {r['rows']:,} rows  "
                f"{r['rows'] / max(1, r['batches']):,.0f} rows a batch"
            )
            print(f"  {name:22s} {r['median']:7.3f} s  ({settings}){shown}  {rest}")
            if "stages" in r:
                stages = {stage: round(took, 3) for stage, took in r["stages"].items()}
                print(f"  stages: {stages}")
