"""Edge lists to graph folders: DuckDB reading the file into arrays, pagraph importing it, and
pagraph at an earlier commit; in turn, each in a process of its own that has read such a file before.

Run: ``python benchmarks/edge_list.py --before ../before`` (10 million lines: about 10 minutes, 2 GiB
in a temporary folder). ``--lines 100_000_000 --nodes 10_000_000 --cases edges.tsv words.csv --memory
1GiB --repeats 1`` is the case beyond memory: 15 minutes, and 15 GiB.
"""

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import revision, summarise, write

# Columns behind the two ids, and the options that keep them; an earlier commit kept one of them.
CASES = {
    "edges.tsv": ((), {}),
    "edges.tsv.gz": ((), {}),
    "weighted.csv": (("amount", "year"), {"weight": "amount"}),
    "weighted.parquet": (("amount", "year"), {"weight": "amount"}),
    "words.csv": (("amount", "year"), {"weight": "amount", "relabel": True}),
}
WARMING_LINES = 20_000


def generate(name, path, lines, nodes):
    """Random edges with an amount and a year, in the form that the name says."""
    import duckdb

    columns, _ = CASES[name]
    end = "hash({n}, {i}) % {nodes}"
    if name.startswith("words"):
        end = f"'user-' || ({end})"
    source, target = (end.format(n=n, i="i", nodes=nodes) for n in (1, 2))
    chosen = [f"{source} AS src", f"{target} AS dst"]
    if columns:
        chosen.append("round((hash(3, i) % 1000000) / 1000000, 3) AS amount")
        chosen.append("(1950 + hash(4, i) % 75)::BIGINT AS year")
    form = "format parquet"
    if not name.endswith("parquet"):
        separator = "\t" if "tsv" in name else ","
        form = f"format csv, delimiter '{separator}', header {str(bool(columns)).lower()}"
    target = path.with_suffix("") if name.endswith("gz") else path
    query = f"SELECT {', '.join(chosen)} FROM range({lines}) t(i)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{target}' ({form})")
    if name.endswith("gz"):
        with open(target, "rb") as text, gzip.open(path, "wb", 1) as zipped:
            shutil.copyfileobj(text, zipped, 2**24)


def with_duckdb(path, out, memory):
    """All columns as arrays of NumPy; ids that are words are numbered in sorted order."""
    import duckdb

    with tempfile.TemporaryDirectory(dir=out.parent) as spilled:
        settings = {"temp_directory": spilled}
        if memory:
            settings["memory_limit"] = memory
        connection = duckdb.connect(config=settings)
        relation = f"read_csv('{path}', auto_detect=true)"
        if path.suffix == ".parquet":
            relation = f"read_parquet('{path}')"
        if "words" not in path.name:
            return connection.sql(f"SELECT * FROM {relation}").fetchnumpy()
        connection.sql(f"CREATE TABLE rows AS SELECT * FROM {relation}")
        connection.sql(
            "CREATE TABLE ids AS SELECT w, row_number() OVER (ORDER BY w) - 1 AS n FROM "
            "(SELECT src AS w FROM rows UNION SELECT dst FROM rows)"
        )
        return connection.sql(
            "SELECT a.n, b.n, r.amount, r.year FROM rows r JOIN ids a ON r.src = a.w "
            "JOIN ids b ON r.dst = b.w ORDER BY r.rowid"
        ).fetchnumpy()


def imported(path, out, memory, before=False):
    """A graph folder with all columns that this version keeps."""
    from pagraph.datasets import import_graph

    options = dict(CASES[path.name][1])
    if not before:  # all columns are kept without an option
        options.pop("weight", None)
    import_graph(path, out, memory=memory or None, **options)


def worker(way, path, small, memory):
    """Read a small file, then the large one; prints seconds and the peak in MiB."""
    work = {
        "duckdb": with_duckdb,
        "pagraph": imported,
        "before": lambda *given: imported(*given, before=True),
    }[way]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        work(small, Path(folder) / "small", memory)
        begin = time.perf_counter()
        kept = work(path, Path(folder) / "large", memory)
        seconds = time.perf_counter() - begin
        del kept
    own = peak()
    print(seconds, time.process_time(), own)


def peak():
    """MiB of the process at its peak, mapped pages among them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(way, path, small, options):
    env = dict(os.environ)
    if way == "before":
        env["PYTHONPATH"] = str(options.before)
    command = [sys.executable, __file__, "--worker", way, path, small, options.memory]
    done = subprocess.run(
        list(map(str, command)), env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"  {way}: {done.stderr.strip().splitlines()[-1][:200]}")
        return None
    return tuple(map(float, done.stdout.split()[-3:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--memory", default="", help='such as "1GiB"; also for DuckDB')
    parser.add_argument("--folder", type=Path, help="for the files; default: a temporary one")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        way, path, small, memory = options.worker
        return worker(way, Path(path), Path(small), memory)
    ways = ["duckdb", "pagraph"] + (["before"] if options.before else [])
    names = ("lines", "nodes", "repeats", "memory")
    result = {"settings": {name: getattr(options, name) for name in names}, "cases": {}}
    if options.before:
        result["before"] = revision(options.before)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for case in options.cases:
            path = Path(name) / case
            small = Path(name) / "small" / case
            small.parent.mkdir(exist_ok=True)
            generate(case, small, WARMING_LINES, 1000)
            generate(case, path, options.lines, options.nodes)
            result["cases"][case] = measured(path, small, ways, options)
            path.unlink()
    write("edge_list_large" if options.lines > 50_000_000 else "edge_list", result)


def measured(path, small, ways, options):
    """The figures of each way, which take turns."""
    runs = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way in ways:
            figures = run(way, path, small, options)
            if figures is not None:
                runs[way].append(figures)
    found = {}
    for way, figures in runs.items():
        if not figures:
            continue
        seconds, cpu, peaks = zip(*figures, strict=True)
        found[way] = {
            "seconds": summarise(list(seconds)),
            "cpu_seconds_of_the_process": summarise(list(cpu)),
            "peak_mib": max(peaks),
        }
        print(
            f"{path.name}, {way}: {found[way]['seconds']['median']:.2f} s, {max(peaks):.0f} MiB",
            flush=True,
        )
    return {"bytes": path.stat().st_size, **found}


if __name__ == "__main__":
    main()
