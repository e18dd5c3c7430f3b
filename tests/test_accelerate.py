"""Hugging Face accelerate over our loaders, with one process and two: whose seeds, in what order,
when gradients are synchronised, and going on in the middle.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING, forked_python, torchrun_environment

pytest.importorskip("accelerate", reason="needs accelerate (pip install accelerate)")
pytestmark = pytest.mark.clients

NUM_NODES = 103
EDGES = torch.randint(NUM_NODES, (2, 600), generator=torch.Generator().manual_seed(0))


def pyg(**options):
    from pagraph.pyg import NeighborLoader, import_pyg

    Data = import_pyg().data.Data

    data = Data(x=torch.ones(NUM_NODES, 4), edge_index=EDGES)
    options = {"shuffle": True, "seed": 1} | options
    return NeighborLoader(data, [2], batch_size=10, **options), lambda b: b.n_id[: b.batch_size]


def dgl(**options):
    import pagraph.dgl

    graph = pagraph.dgl.import_dgl().graph(tuple(EDGES), num_nodes=NUM_NODES)
    sampler = pagraph.dgl.NeighborSampler([2])
    ids = torch.arange(NUM_NODES)
    options = {"shuffle": True, "seed": 1} | options
    loader = pagraph.dgl.DataLoader(graph, ids, sampler, batch_size=10, **options)
    return loader, lambda batch: batch[1]


def core(**options):
    from pagraph import Graph, Loader, NeighborSampler

    graph = Graph.from_coo(*EDGES, NUM_NODES)
    ids = torch.arange(NUM_NODES)
    options = {"batch_size": 10, "shuffle": True, "seed": 1} | options
    return Loader(graph, ids, NeighborSampler([2]), **options), lambda batch: batch.output_nodes


FACES = {"pyg": pyg, "dgl": dgl, "core": core}


def script(face, folder, options):
    """What one process does; writes what it saw."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    rank = accelerator.process_index
    seen = {"seeds": [], "synchronised": []}
    place = Path(folder, f"{rank}.json")
    try:
        given, seeds = FACES[face](**options)
        loader = accelerator.prepare(given)
        seen |= {"same": loader is given, "batches": len(loader)}
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    seen["synchronised"].append(accelerator.sync_gradients)
                seen["seeds"].append(seeds(batch).tolist())
                if len(seen["seeds"]) == 8 and face != "core":
                    accelerator.save_state(str(Path(folder, "state")))
        if face != "core":
            accelerator.free_memory()
            other, seeds = FACES[face](**options)
            other = accelerator.prepare(other)
            accelerator.prepare(torch.nn.Linear(1, 1))
            accelerator.load_state(str(Path(folder, "state")))
            seen["resumed"] = [seeds(batch).tolist() for batch in other]
    except (TypeError, ValueError) as error:
        seen["error"] = str(error)
    place.write_text(json.dumps(seen))


def run(folder, face, processes, **options):
    """What each process of the script saw."""
    environment = torchrun_environment()
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [forked_python(), "-W", "ignore"]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [__file__, face, str(folder), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def flat(batches):
    return sum(batches, [])


@pytest.mark.parametrize("face", FACES)
def test_one_process_sees_what_the_loader_gives_alone(face, tmp_path):
    if face == "dgl":
        pytest.importorskip("pagraph.dgl", reason="needs DGL")
    (seen,) = run(tmp_path, face, 1)
    loader, seeds = FACES[face]()
    assert seen["seeds"] == [seeds(batch).tolist() for _ in range(2) for batch in loader]
    assert seen["same"] and seen["batches"] == 11
    if face != "core":
        # Every fourth batch, and the last one of an epoch.
        expected = [step % 4 == 0 or step == 11 for step in range(1, 12)]
        assert seen["synchronised"][:11] == expected
        # The saved place was in the first epoch's middle, and an epoch goes to its end.
        assert seen["resumed"] == seen["seeds"][8:11]


@pytest.mark.parametrize(
    ("face", "options"),
    [
        ("pyg", {}),
        ("pyg", {"seed": None}),
        ("dgl", {}),
        ("dgl", {"use_ddp": True}),
        ("core", {"use_ddp": True}),
    ],
    ids=str,
)
def test_two_processes_share_the_seeds(face, options, tmp_path):
    if face == "dgl":
        pytest.importorskip("pagraph.dgl", reason="needs DGL")
    ranks = run(tmp_path, face, 2, **options)
    assert [seen["batches"] for seen in ranks] == [6, 6]
    for epoch in (slice(0, 6), slice(6, 12)):
        parts = [flat(seen["seeds"][epoch]) for seen in ranks]
        # One of 103 comes twice: neither process waits for the other.
        assert [len(part) for part in parts] == [52, 52]
        assert set(flat(parts)) == set(range(NUM_NODES))
    if face != "core":
        assert all(seen["resumed"] == seen["seeds"][8:] for seen in ranks)
        assert ranks[0]["synchronised"][:6] == [False, False, False, True, False, True]


def test_the_core_loader_asks_whose_seeds_they_are(tmp_path):
    for seen in run(tmp_path, "core", 2):
        assert seen["error"] == (
            "use_ddp must be given where accelerate runs 2 processes: True divides the seeds "
            "between them, False says that they are this process's own; got None"
        )
        assert seen["seeds"] == []
    own = run(tmp_path, "core", 2, use_ddp=False)
    assert [len(flat(seen["seeds"])) for seen in own] == [206, 206]


if __name__ == "__main__":
    script(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
