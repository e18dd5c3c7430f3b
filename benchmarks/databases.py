"""Databases: ``import_graph`` against ADBC merely streaming all rows of all tables; each in a
process of its own, in turn.

Run: ``python benchmarks/databases.py`` (10 million rows in 5 tables, about 1 GB of SQLite and 1 GB
of PostgreSQL in a temporary folder). Starts a PostgreSQL server, if there is one.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "datasets"))

# Of all rows.
SHARES = {"users": 0.1, "products": 0.02, "orders": 0.3, "lines": 0.5, "follows": 0.08}
TABLES = {
    "users": "id integer primary key, country varchar(8), age integer, joined timestamp",
    "products": "id integer primary key, price double precision, title varchar(40)",
    "orders": "id integer primary key, user_id integer references users(id), placed timestamp, "
    "returned boolean",
    "lines": "id integer primary key, order_id integer references orders(id), "
    "product_id integer references products(id), amount integer, price double precision",
    "follows": "user_id integer references users(id), friend_id integer references users(id)",
}
MEMORY = "1GiB"


def queries(rows):
    """What DuckDB makes each table's rows of."""
    users, products, orders = (int(rows * SHARES[n]) for n in ("users", "products", "orders"))
    day = "(timestamp '2020-01-01' + to_seconds((random() * 1e8)::bigint))"
    some = "(random() * {} + 0.5)::integer"
    some_user = some.format(users - 1)
    values = {
        "users": f"i, 'c' || (i % 40), (18 + random() * 60)::integer, {day}",
        "products": "i, round(random() * 100, 2), 'product number ' || i",
        "orders": f"i, {some_user}, {day}, random() < 0.3",
        "lines": f"i, {some.format(orders - 1)}, {some.format(products - 1)}, "
        "(random() * 9)::integer, round(random() * 100, 2)",
        "follows": f"{some_user}, {some_user}",
    }
    return {
        name: f"select {columns} from range(1, {int(rows * SHARES[name])} + 1) t(i)"
        for name, columns in values.items()
    }


def generate(folder, rows):
    """A file of CSV for each table, and a database of SQLite's."""
    import duckdb

    link = sqlite3.connect(folder / "shop.db")
    link.execute("pragma journal_mode = off")
    link.execute("pragma synchronous = off")
    with duckdb.connect() as source:
        source.execute("select setseed(0.5)")
        for name, query in queries(rows).items():
            path = folder / f"{name}.csv"
            source.execute(f"copy ({query}) to '{path}' (header false)")
            path.chmod(0o644)
            link.execute(f"create table {name} ({TABLES[name]})")
            marks = ",".join("?" * (TABLES[name].count(",") + 1))
            found = source.execute(
                f"select columns(*)::varchar from read_csv('{path}', header = false)"
            )
            while block := found.fetchmany(100_000):
                link.executemany(f"insert into {name} values ({marks})", block)
    link.execute("update orders set returned = (returned = 'true')")
    link.commit()
    link.close()


@contextlib.contextmanager
def in_file(path):
    yield str(path)


@contextlib.contextmanager
def in_server(folder):
    from postgres_server import running_server

    with running_server() as server:
        fill(server, folder)
        yield server.url()


def fill(server, folder):
    reference = re.compile(r"(\w+) integer (references \w+\(\w+\))")
    for name, columns in TABLES.items():
        # Keys come afterwards: they would be looked up row by row.
        bare = reference.sub(r"\1 integer", columns)
        server.run(f"create table {name} ({bare})")
        server.run(f"copy {name} from '{folder / f'{name}.csv'}' csv")
        server.run(f"analyze {name}")
    for name, columns in TABLES.items():
        for column, target in reference.findall(columns):
            server.run(f"alter table {name} add foreign key ({column}) {target}")


# -- what is measured, in a process of its own -----------------------------------------------------


def peak():
    """The most memory that this process held, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def stream(source):
    """ADBC alone: all rows of all tables, a batch at a time."""
    import adbc_driver_manager as adbc
    import nanoarrow

    name = "postgresql" if source.startswith("postgresql:") else "sqlite"
    driver = importlib.import_module(f"adbc_driver_{name}")
    begin = time.perf_counter()
    rows = 0
    with (
        adbc.AdbcDatabase(driver=driver._driver_path(), uri=source) as database,
        adbc.AdbcConnection(database) as link,
    ):
        for table in TABLES:
            with adbc.AdbcStatement(link) as statement:
                statement.set_sql_query(f"select * from {table}")
                found, _ = statement.execute_query()
                for batch in nanoarrow.c_array_stream(found):
                    rows += batch.length
    return rows, time.perf_counter() - begin


def ours(source, folder):
    """The graph folder, from the first byte to the last."""
    import duckdb  # noqa: F401  both have imported what they need before the clock runs
    import nanoarrow  # noqa: F401

    from pagraph.datasets import import_graph, native  # noqa: F401

    begin = time.perf_counter()
    graph = import_graph(source, folder, memory=MEMORY, task="orders:returned:placed")
    seconds = time.perf_counter() - begin
    return graph.num_nodes, seconds


def measured(way, source):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", way, source, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(source, repeats):
    # Late: it imports torch, which ADBC's process must not hold.
    from report import summarise

    runs = {"adbc": [], "pagraph": []}
    loads = []
    for _ in range(repeats):
        for way, found in runs.items():
            found.append(measured(way, source))
            loads.append(os.getloadavg()[0])
    result = {"load": [round(load, 1) for load in loads]}
    for way, found in runs.items():
        result[way] = {
            "rows": found[0]["rows"],
            "seconds": summarise([run["seconds"] for run in found]),
            "cpu_seconds": summarise([run["cpu"] for run in found]),
            "peak_bytes": summarise([run["peak"] for run in found]),
        }
    medians = {way: result[way]["seconds"]["median"] for way in runs}
    result["ratio"] = medians["pagraph"] / medians["adbc"]
    for way, seconds in medians.items():
        held = result[way]["peak_bytes"]["median"] / 2**20
        print(f"  {way:8} {seconds:7.2f} s, {held:6.0f} MiB", flush=True)
    print(f"  ratio {result['ratio']:.2f}, loads {result['load']}", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where tables are, or are made and stay")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        way, source, folder = options.worker
        rows, seconds = stream(source) if way == "adbc" else ours(source, Path(folder) / "graph")
        cpu = sum(os.times()[:2])
        print(json.dumps({"rows": rows, "seconds": seconds, "cpu": cpu, "peak": peak()}))
        return
    from report import write

    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    # PostgreSQL's server is another user, and reads the files.
    folder.chmod(0o755)
    settings = {"rows": options.rows, "repeats": options.repeats, "memory": MEMORY}
    result = {"settings": settings, "databases": {}}
    try:
        path = folder / "shop.db"
        if not path.exists():
            generate(folder, options.rows)
        for name, database in (("sqlite", in_file(path)), ("postgresql", in_server(folder))):
            with database as source:
                print(name, flush=True)
                measured("adbc", source)
                result["databases"][name] = compare(source, options.repeats)
            write("databases", result)
    finally:
        if not options.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
