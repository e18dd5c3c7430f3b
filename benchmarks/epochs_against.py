"""Epoch benchmarks of this checkout against another one: each script runs in both, in turn; their
times compared.

Each checkout runs its own ``benchmarks/NAME.py`` with its own pagraph, so that a script may use
what only its version has; one that is older than ``sides.py`` measures with
``OMP_WAIT_POLICY=passive`` alone. The results that lie there are put back afterwards. Of every
pagraph loader in ``results/NAME.json`` that ``contest.run`` has timed this gives:

- "ratio": the other checkout's seconds an epoch over ours, median over the turns: above 1, ours is
  faster;
- "ratio to peers": the same of the times as fast as the best peer in the same run, where the script
  has one: what slows the machine down for a whole run drops out;
- "ratio of fastest": of the fastest epochs of all turns, for other programs only add time.

Run: ``python benchmarks/epochs_against.py ../before`` (about 8 minutes a script and turn, for both
checkouts), or
``python benchmarks/epochs_against.py ../before dgl_loader weighted --turns 5 -- --rounds 9``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from report import RESULTS, revision, write

CHECKOUT = Path(__file__).resolve().parents[1]
NAMES = [
    "dgl_loader",
    "heterograph",
    "link_prediction",
    "pyg_loader",
    "weighted",
    "layerwise",
    "labor",
]
LEAST = 0.97
"""A lower ratio is marked in the table."""


def run_script(checkout, name, options):
    """What a benchmark of a checkout writes; the file that is there stays as it is."""
    path = checkout / "benchmarks" / "results" / f"{name}.json"
    kept = path.read_bytes() if path.exists() else None
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    try:
        subprocess.run(
            [sys.executable, checkout / "benchmarks" / f"{name}.py", *options],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(path.read_text())
    finally:
        if kept is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(kept)


def epochs(result, case=()):
    """Case, loader, summary of its epochs, and the median of the best peer beside it; None without
    one."""
    for key, value in result.items():
        if key == "loaders" and all("median" in of_loader for of_loader in value.values()):
            peers = [
                seconds["median"]
                for name, seconds in value.items()
                if not name.startswith("pagraph")
            ]
            for name, seconds in value.items():
                if name.startswith("pagraph"):
                    yield ", ".join(case), name, seconds, min(peers, default=None)
        elif isinstance(value, dict):
            yield from epochs(value, (*case, key))


def compare(now, before):
    """Results of equal turns to figures, by case and loader."""
    figures = {}
    for turn in zip(now, before, strict=True):
        of_now, of_before = (
            {(case, name): rest for case, name, *rest in epochs(result)} for result in turn
        )
        for key in of_now.keys() & of_before.keys():
            figures.setdefault(key, []).append((*of_now[key], *of_before[key]))
    result = {}
    for (case, name), turns in sorted(figures.items()):
        ours, _, others, _ = zip(*turns, strict=True)
        row = {
            "now": statistics.median(seconds["median"] for seconds in ours),
            "before": statistics.median(seconds["median"] for seconds in others),
            "ratio": statistics.median(
                other["median"] / own["median"] for own, _, other, _ in turns
            ),
            "ratio of fastest": min(s["min"] for s in others) / min(s["min"] for s in ours),
        }
        if all(peer and other_peer for _, peer, _, other_peer in turns):
            row["ratio to peers"] = statistics.median(
                (peer / own["median"]) / (other_peer / other["median"])
                for own, peer, other, other_peer in turns
            )
        result.setdefault(case, {})[name] = row
    return result


def show(name, table):
    for case, rows in table.items():
        print(f"\n{name}: {case}")
        for loader, row in rows.items():
            ratios = "   ".join(
                f"{key} {value:.3f}" for key, value in row.items() if key.startswith("ratio")
            )
            mark = f"   below {LEAST}" if row["ratio"] < LEAST else ""
            print(
                f"  {loader:24s} {row['now']:7.3f} s   before {row['before']:7.3f} s   "
                f"{ratios}{mark}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", type=Path, help="the other checkout")
    parser.add_argument("names", nargs="*", default=NAMES, help=f"benchmarks [{' '.join(NAMES)}]")
    parser.add_argument(
        "--turns", type=int, default=3, help="runs of each script in each checkout [3]"
    )
    line = sys.argv[1:]
    end = line.index("--") if "--" in line else len(line)
    given, options = parser.parse_args(line[:end]), line[end + 1 :]
    checkouts = {"now": CHECKOUT, "before": given.baseline.resolve()}
    settings = {
        "turns": given.turns,
        "options": options,
        "revisions": {of: revision(c) for of, c in checkouts.items()},
    }
    earlier = RESULTS / "epochs_against.json"
    result = json.loads(earlier.read_text()) if earlier.exists() else {}
    # Scripts that this run leaves out keep their results, each with its revisions.
    for told in ("machine", "revision"):
        result.pop(told, None)
    for name in given.names:
        runs = {of: [] for of in checkouts}
        for turn in range(given.turns):
            for of in list(checkouts)[:: 1 if turn % 2 else -1]:
                runs[of].append(run_script(checkouts[of], name, options))
        cases = compare(runs["now"], runs["before"])
        show(name, cases)
        result[name] = settings | {"cases": cases}
        write("epochs_against", result)


if __name__ == "__main__":
    main()
