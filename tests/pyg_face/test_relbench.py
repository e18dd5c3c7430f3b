"""RelBench's recommendation: the example learns, and RelBench's own loader takes our sampler."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_processes import forked_python

pytest.importorskip("relbench", reason="needs relbench (pip install '.[dev-clients]')")
pytest.importorskip("torch_frame", reason="needs PyTorch Frame (pip install '.[dev-clients]')")
import pandas as pd
import relbench
from relbench.manifest import DatasetManifest, TableSpec, TaskManifest
from relbench.modeling import loader as relbench_loader
from relbench.modeling.graph import get_link_train_table_input

import pagraph.pyg
from pagraph import Graph
from pagraph.pyg import to_pyg

# Of RelBench's tensors of links, and of its use of pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:relbench"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "relbench_recommendation.py"
CUSTOMERS = 300
PRODUCTS = 60
SQL = """SELECT t.timestamp AS time, p.customer AS customer, LIST(DISTINCT p.product) AS product
FROM timestamps t JOIN purchase p
ON p.time > t.timestamp AND p.time <= t.timestamp + INTERVAL '{timedelta}'
GROUP BY t.timestamp, p.customer"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A database in RelBench's form: each customer mostly buys of one of ten groups of products."""
    folder = tmp_path_factory.mktemp("relbench") / "shop"
    rng = np.random.default_rng(0)
    purchases = 9000
    start = pd.Timestamp("2024-01-01")
    who = rng.integers(CUSTOMERS, size=purchases)
    of_group = (who % 10) * 6 + rng.integers(6, size=purchases)
    any_product = rng.integers(PRODUCTS, size=purchases)
    days = np.sort(rng.integers(360, size=purchases))
    joined = start - pd.to_timedelta(rng.integers(1, 400, CUSTOMERS), "D")
    tables = {
        "customer": pd.DataFrame(
            {
                "id": np.arange(CUSTOMERS),
                "age": rng.integers(18, 90, CUSTOMERS),
                "joined": joined,
            }
        ),
        "product": pd.DataFrame(
            {"id": np.arange(PRODUCTS), "price": rng.gamma(2, 10, PRODUCTS).round(2)}
        ),
        "purchase": pd.DataFrame(
            {
                "id": np.arange(purchases),
                "customer": who,
                "product": np.where(rng.random(purchases) < 0.2, any_product, of_group),
                "pieces": rng.integers(1, 5, purchases),
                "time": start + pd.to_timedelta(days, "D"),
            }
        ),
    }
    specs = {
        "customer": TableSpec("id", "joined"),
        "product": TableSpec("id"),
        "purchase": TableSpec("id", "time", {"customer": "customer", "product": "product"}),
    }
    (folder / "db").mkdir(parents=True)
    for name, frame in tables.items():
        frame.to_parquet(folder / "db" / f"{name}.parquet")
    DatasetManifest("shop", "2024-09-01", "2024-10-31", tables=specs).save(folder / "manifest.yaml")
    task = TaskManifest(
        "buys", "forecast", "recommendation", sql=SQL, timedelta="30 days", eval_k=6
    )
    task.src_entity_table = task.src_entity_col = "customer"
    task.dst_entity_table = task.dst_entity_col = "product"
    task.time_col = "time"
    task.save(folder / "tasks" / "buys" / "manifest.yaml")
    return folder


@pytest.mark.clients
def test_the_example_learns(shop):
    options = ["--epochs", "6", "--batch-size", "64", "--fanouts", "8", "8"]
    command = [forked_python(), "-W", "ignore", str(EXAMPLE), str(shop), "buys", *options]
    # Waiting OpenMP threads spin: on busy cores two are far slower than one.
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    assert "purchase/tf.timestamp" in done.stdout
    # At random it is 0.04.
    assert float(re.search(r"^test MAP ([\d.]+)$", done.stdout, re.MULTILINE)[1]) > 0.12


@pytest.mark.parametrize("share", [True, False])
def test_relbenchs_own_loader_takes_our_sampler(shop, monkeypatch, share):
    monkeypatch.setattr(relbench_loader, "NeighborSampler", pagraph.pyg.NeighborSampler)
    dataset = relbench.load_dataset(str(shop))
    task = dataset.load_task("buys")
    data = to_pyg(Graph.from_tables(dataset.get_db()), frames=True)
    given = get_link_train_table_input(task.get_table("train"), task, PRODUCTS)
    loader = relbench_loader.LinkNeighborLoader(
        data,
        [8, 8],
        given.src_nodes,
        given.dst_nodes,
        given.num_dst_nodes,
        src_time=given.src_time,
        share_same_time=share,
        time_attr="time",
        batch_size=64,
    )
    parts = next(iter(loader))
    for ntype, part in zip(("customer", "product", "product"), parts, strict=True):
        store = part["purchase"]
        assert (store.time <= part[ntype].seed_time[store.batch]).all()
        assert store.tf == data["purchase"].tf[store.n_id]
        assert len(part[ntype].seed_time) == 64
        assert torch.equal(part[ntype].n_id[:64], part[ntype].input_id)
