"""Several processes: fork after the loader's threads have run."""

import subprocess
import textwrap

import pytest
from fresh_processes import HANGING, forked_python

pytestmark = pytest.mark.processes


def run(script, *args, timeout=HANGING):
    return subprocess.run(
        [forked_python(), "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_forked_child_can_load_after_the_parents_threads_have_run():
    done = run("""
        import os, warnings; warnings.simplefilter("ignore")
        import torch, pagraph.dgl, dgl
        graph = dgl.graph((torch.arange(99), torch.arange(1, 100)), num_nodes=100)
        sampler = dgl.dataloading.NeighborSampler([2, 2])
        loader = pagraph.dgl.DataLoader(graph, torch.arange(100), sampler, batch_size=7, num_workers=2)
        live = iter(loader)
        next(live)
        child = os.fork()
        if child == 0:
            os._exit(0 if len(list(loader)) == 15 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(live)) == 14
        print("both")
    """)
    assert done.stdout.strip() == "both", done.stderr
