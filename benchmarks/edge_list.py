"""Edge lists: Arrow reading the file alone, pagraph reading it into arrays, and into a graph; in
turn, each format.

Run: ``python benchmarks/edge_list.py`` (10 million lines: about 3 minutes, 1 GiB in a temporary
folder). Needs pyarrow.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from report import summarise, write

from pagraph.datasets import read_edge_list
from pagraph.datasets.edge_list import read_parquet
from pagraph.datasets.edge_rows import read_integers

FORMATS = ("edges.tsv", "weighted.csv", "edges.tsv.gz", "edges.parquet")


def generate(folder, lines, nodes):
    """The same random edges in every format."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes, (2, lines))
    edges = pa.table({"src": src, "dst": dst})
    weighted = edges.append_column("weight", pa.array(rng.random(lines, dtype=np.float32).round(3)))
    for name, table, separator in (("edges.tsv", edges, "\t"), ("weighted.csv", weighted, ",")):
        options = pa.csv.WriteOptions(include_header=False, delimiter=separator)
        pa.csv.write_csv(table, folder / name, options)
    with (
        open(folder / "edges.tsv", "rb") as text,
        gzip.open(folder / "edges.tsv.gz", "wb", 1) as zipped,
    ):
        shutil.copyfileobj(text, zipped, 2**24)
    pa.parquet.write_table(edges, folder / "edges.parquet")


def arrow(path):
    """Arrow's own reader of the whole file, with the columns' types given."""
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    types = {"src": pa.int64(), "dst": pa.int64()} | (
        {"weight": pa.float64()} if "weighted" in path.name else {}
    )
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(column_names=list(types)),
        parse_options=pa.csv.ParseOptions(delimiter="," if "csv" in path.name else "\t"),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )


def arrays(path):
    """Sources, destinations and weights."""
    weight = "weight" if "weighted" in path.name else None
    if path.suffix == ".parquet":
        rows = read_parquet(path, weight=weight, relabel=False, progress=None)
    else:
        rows = read_integers(path, weight=weight, header=None, progress=None)
    return rows.src, rows.dst, rows.weight


def graph(path):
    return read_edge_list(path, weight="weight" if "weighted" in path.name else None)


def seconds(work, path):
    begin = time.perf_counter()
    work(path)
    return time.perf_counter() - begin


def memory(path):
    """MiB that reading takes at its peak, and of the arrays; alone in its process."""

    def status(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    kept = arrays(path)
    print(status("VmHWM") - before, sum(array.nbytes for array in kept) / 2**20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        return memory(options.memory)
    result = {
        "settings": {name: getattr(options, name) for name in ("lines", "nodes", "repeats")},
        "pyarrow": pa.__version__,
        "formats": {},
    }
    ways = {"arrow": arrow, "arrays": arrays, "graph": graph}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, options.lines, options.nodes)
        for path in (folder / name for name in FORMATS):
            runs = {way: [] for way in ways}
            for _ in range(options.repeats):
                for way, work in ways.items():
                    runs[way].append(seconds(work, path))
            figures = {way: summarise(values) for way, values in runs.items()}
            ratio = figures["arrays"]["median"] / figures["arrow"]["median"]
            child = subprocess.run(
                [sys.executable, __file__, "--memory", path],
                check=True,
                capture_output=True,
                text=True,
            )
            peak, kept = map(float, child.stdout.split())
            medians = ", ".join(
                f"{way} {figure['median']:.2f} s" for way, figure in figures.items()
            )
            print(
                f"{path.name}: {medians}; {ratio:.2f} times Arrow's time; {peak:.0f} MiB for "
                f"arrays of {kept:.0f}"
            )
            result["formats"][path.name] = {
                "bytes": path.stat().st_size,
                "seconds": figures,
                "ratio": ratio,
                "mib": {"peak": peak, "arrays": kept},
            }
    write("edge_list", result)


if __name__ == "__main__":
    main()
