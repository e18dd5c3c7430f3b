"""What fixed shapes cost and spare: padding, epochs of the loader, compilations.

RMAT graphs, 16 edges a vertex, 128 float32, fan-out 15,10,5, batches of 1024 vertices that have
neighbours, shuffled, on the CPU. For the core's blocks and PyG's subgraphs of each scale:

- the seconds that learning the sizes takes, once a loader;
- padding of two epochs, as ``loader.envelope`` counts it, and the share of batches in the first
  size;
- seconds of an epoch that only reads batches, with fixed and with sampled shapes in turn, on the
  clock and of the processors, which others do not disturb as much; ratios are medians of the
  rounds' ratios;
- how often ``torch.compile`` compiles GraphSAGE of PyG's layers in so many steps, by default and
  with ``dynamic=False``. The backend only counts and runs the graph that was traced, so that this
  is no measurement of speed.

Run: ``python benchmarks/fixed_shapes.py`` (about 10 minutes, 4 GiB of memory); ``--scales 17`` for
one scale, ``--rounds 1`` for one round.
"""

import argparse
import statistics
import time

import torch
from gpu_workload import SAGE, random_rows
from report import summarise, write

from pagraph import Loader, NeighborSampler
from pagraph.datasets import rmat
from pagraph.pyg import NeighborLoader, to_pyg

DIM = 128
FANOUTS = [15, 10, 5]
BATCH_SIZE = 1024


def make_graph(scale):
    """RMAT with rows and labels, and its vertices that have neighbours."""
    graph = rmat(scale, edge_factor=8, undirected=True, seed=0)
    graph.ndata["feat"] = random_rows(graph.num_nodes, DIM)
    graph.ndata["label"] = torch.arange(graph.num_nodes) % 32
    return graph, (graph.in_degrees() > 0).nonzero().squeeze(1)


def core(graph, seeds, shapes, batch_size=BATCH_SIZE):
    sampler = NeighborSampler(FANOUTS)
    fields = {"fields": ["feat"], "labels": ["label"]}
    return Loader(
        graph, seeds, sampler, **fields, batch_size=batch_size, shuffle=True, seed=0, shapes=shapes
    )


def pyg(graph, seeds, shapes):
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 0, "shapes": shapes}
    return NeighborLoader(to_pyg(graph), FANOUTS, input_nodes=seeds, **options)


FACES = {"core": core, "pyg": pyg}


def seconds_of_epoch(loader):
    """Seconds on the clock, and of all threads on processors."""
    begin = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def measure(face, graph, seeds, rounds):
    """Epochs with both kinds of shapes, one after the other in each round."""
    loaders = {shapes: FACES[face](graph, seeds, shapes) for shapes in ("sampled", "fixed")}
    begin = time.perf_counter()
    envelope = loaders["fixed"].envelope
    learned = time.perf_counter() - begin
    seconds = {"sampled": [], "fixed": []}
    for round_ in range(rounds + 1):
        for shapes, loader in loaders.items():
            taken = seconds_of_epoch(loader)
            if round_:  # the first one compiles, and fills what is recycled
                seconds[shapes].append(taken)
    print(envelope)
    nodes, edges = envelope.padding
    times = {}
    for place, clock in enumerate(("seconds", "processor seconds")):
        of_clock = {shapes: [taken[place] for taken in seconds[shapes]] for shapes in seconds}
        ratios = [fixed / plain for plain, fixed in zip(*of_clock.values(), strict=True)]
        times |= {f"{shapes}, {clock}": summarise(runs) for shapes, runs in of_clock.items()}
        times[f"fixed / sampled, {clock}"] = round(statistics.median(ratios), 3)
    return {
        "batches": len(loaders["fixed"]),
        "seconds to learn": round(learned, 3),
        "padding vertices": round(nodes, 4),
        "padding edges": round(edges, 4),
        "batches of the last epoch by size": envelope.batches,
        "sizes": [[list(of) for of in sizes] for sizes in envelope.sizes],
    } | times


def compilations(graph, seeds, shapes, dynamic, steps):
    """How often a step of the core loader's batches is compiled; these are small, as sizes matter
    and not rows."""
    compiled = 0

    def backend(traced, example_inputs):
        nonlocal compiled
        compiled += 1
        return traced.forward

    torch._dynamo.reset()
    torch._dynamo.config.cache_size_limit = steps + 1
    model = SAGE(DIM, len(FANOUTS))
    model.requires_grad_(False)
    forward = torch.compile(model, backend=backend, dynamic=dynamic)
    for step, batch in enumerate(core(graph, seeds, shapes, batch_size=32)):
        if step == steps:
            break
        layers = [(block.to_pyg(), block.num_dst) for block in batch.blocks]
        forward(batch.features["feat"], layers)
    return compiled


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scales", type=int, nargs="*", default=[17, 18, 19, 20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="compiled steps [40]")
    parser.add_argument("--most", type=int, default=200, help="most batches of an epoch [200]")
    options = parser.parse_args()
    found = {}
    for scale in options.scales:
        graph, seeds = make_graph(scale)
        order = torch.randperm(len(seeds), generator=torch.Generator().manual_seed(1))
        seeds = seeds[order[: options.most * BATCH_SIZE]]
        for face in FACES:
            figures = measure(face, graph, seeds, options.rounds)
            found[f"scale {scale}, {face}"] = figures
            print(f"scale {scale}, {face}: {figures}", flush=True)
        if scale == options.scales[0]:
            found["compilations"] = {
                f"{shapes}, dynamic={dynamic}": compilations(
                    graph, seeds, shapes, dynamic, options.steps
                )
                for shapes in ("sampled", "fixed")
                for dynamic in (None, False)
            }
            print(found["compilations"], flush=True)
    write("fixed_shapes", {"options": vars(options), "found": found})


if __name__ == "__main__":
    main()
