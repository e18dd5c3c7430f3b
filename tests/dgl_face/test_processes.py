"""Several processes: DDP with gloo, fork after the loader's threads have run, pickled graphs."""

import subprocess
import sys
import textwrap

import pytest
import torch

from pagraph.sampling.seeds import SeedOrder


def run(script, *args, timeout=180):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def rank_parts(length, world, drop_last):
    orders = [
        SeedOrder(torch.arange(length), 2, drop_last=drop_last, rank=rank, world_size=world, seed=0)
        for rank in range(world)
    ]
    parts = []
    for order in orders:
        plan = order.plan(0)
        parts.append([i for b in range(len(order)) for i in order.ticket(plan, b).seeds.tolist()])
    return orders, parts


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("length", range(21))
def test_ranks_cover_the_indices_and_have_equal_lengths(length, world):
    orders, parts = rank_parts(length, world, False)
    assert {len(order) for order in orders} == {len(orders[0])}
    assert {i for part in parts for i in part} == set(range(length))
    if length % world == 0:
        each = length // world
        assert parts == [list(range(r * each, (r + 1) * each)) for r in range(world)]
    orders, parts = rank_parts(length, world, True)
    flat = [i for part in parts for i in part]
    assert len(flat) == len(set(flat)) and {len(order) for order in orders} == {len(orders[0])}


def test_ddp_with_real_processes():
    done = run("""
        import sys, torch, torch.multiprocessing as mp, torch.distributed as dist, tempfile, os
        import pagraph.dgl, dgl

        def work(rank, world, folder):
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
            graph = dgl.graph((torch.arange(99), torch.arange(1, 100)), num_nodes=100)
            loader = pagraph.dgl.DataLoader(
                graph, torch.arange(10), dgl.dataloading.NeighborSampler([2]), use_ddp=True, batch_size=2, shuffle=True
            )
            seen = torch.cat([out for _, out, _ in loader])
            gathered = [None] * world
            dist.all_gather_object(gathered, (len(loader), seen.tolist()))
            if rank == 0:
                assert len({n for n, _ in gathered}) == 1, gathered
                assert {i for _, part in gathered for i in part} == set(range(10)), gathered
                print("covered")
            dist.destroy_process_group()

        if __name__ == "__main__":
            for world in (1, 4):
                processes = []
                with tempfile.TemporaryDirectory() as folder:
                    context = mp.get_context("fork")
                    for rank in range(world):
                        processes.append(context.Process(target=work, args=(rank, world, folder)))
                        processes[-1].start()
                    for process in processes:
                        process.join()
                        assert process.exitcode == 0
    """)
    assert done.stdout.split() == ["covered", "covered"], done.stderr


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
