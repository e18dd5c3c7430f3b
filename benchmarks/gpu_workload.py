"""What the GPU benchmarks train on: an RMAT graph, GraphSAGE with PyG's layers, and epochs that are
timed."""

import time
from dataclasses import dataclass
from functools import cached_property

import torch

from pagraph import Loader, NeighborSampler
from pagraph.datasets import rmat

HIDDEN, CLASSES = 256, 32


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        scale: The graph has ``2**scale`` vertices, and 16 edges for each.
        dim: Width of the float32 features.
        fanouts: In DGL's order; as many layers.
        batch_size: Seeds a batch.
        steps: Batches an epoch.
        rounds: Timed epochs of each loader; one before them is not counted.
    """

    scale: int = 22
    dim: int = 128
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    steps: int = 200
    rounds: int = 3


FULL = Sizes()
QUICK = Sizes(scale=20, steps=40, rounds=1)
TINY = Sizes(scale=7, dim=8, fanouts=(3, 2), batch_size=8, steps=2, rounds=1)


class SAGE(torch.nn.Module):
    """GraphSAGE with mean aggregation; takes rows and, for each layer, its edges and number of
    destinations."""

    def __init__(self, dim, num_layers):
        from torch_geometric.nn import SAGEConv

        super().__init__()
        widths = [dim, *[HIDDEN] * (num_layers - 1), CLASSES]
        self.convs = torch.nn.ModuleList(
            SAGEConv(a, b) for a, b in zip(widths, widths[1:], strict=False)
        )

    def forward(self, x, layers):
        for i, (conv, (edges, num_dst)) in enumerate(zip(self.convs, layers, strict=True)):
            x = conv((x, x[:num_dst]), edges)
            if i + 1 < len(self.convs):
                x = x.relu()
        return x


class Workload:
    """Graph, model and epochs on one accelerator; everything is made when it is first asked for."""

    def __init__(self, accelerator, sizes):
        self.accelerator = accelerator
        self.sizes = sizes

    @cached_property
    def graph(self):
        """RMAT, both directions of every edge, with rows and labels."""
        begin = time.perf_counter()
        graph = rmat(self.sizes.scale, edge_factor=8, undirected=True, seed=0)
        graph.ndata["feat"] = random_rows(graph.num_nodes, self.sizes.dim)
        graph.ndata["label"] = torch.randint(0, CLASSES, (graph.num_nodes,))
        print(f"{graph} made in {time.perf_counter() - begin:.1f} s", flush=True)
        return graph

    @cached_property
    def seeds(self):
        """Vertices with neighbours, as many as ``steps`` batches take."""
        found = (self.graph.in_degrees() > 0).nonzero().squeeze(1)
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(1))
        return found[order[: self.sizes.steps * self.sizes.batch_size]]

    @cached_property
    def sampler(self):
        return NeighborSampler(list(self.sizes.fanouts))

    @cached_property
    def trainer(self):
        return Trainer(self.accelerator.device, self.sizes)

    def loader(self, *, seeds=None, **options):
        """Our loader of this workload; sampling on the device and a cache of 20 % of the rows
        unless told otherwise."""
        seeds = self.seeds if seeds is None else seeds
        settings = {
            "fields": ["feat"],
            "labels": ["label"],
            "batch_size": self.sizes.batch_size,
            "shuffle": True,
            "device": self.accelerator,
            "sampling_device": self.accelerator,
            "cache": 0.2,
            "cache_policy": "degree",
            "seed": 0,
        }
        return Loader(self.graph, seeds, self.sampler, **settings | options)

    def train(self, loader):
        """Seconds of epoch 1 of one of our loaders, its batches trained on."""
        loader.set_epoch(1)
        return self.seconds(lambda: self.trainer.epoch(ours(loader)))

    def warm_up(self, loader):
        """Compile what is compiled, choose and fill the cache."""
        self.trainer.epoch(ours(loader))

    def seconds(self, work):
        """Wall time until the device has done it, too."""
        self.accelerator.synchronize()
        begin = time.perf_counter()
        work()
        self.accelerator.synchronize()
        return time.perf_counter() - begin

    @cached_property
    def resident(self):
        """The batches of epoch 1, all on the device, as many as take half of what is free there."""
        loader = self.loader(cache=0)
        room = self.accelerator.free_bytes()[0] // 2
        batches = []
        try:
            loader.set_epoch(1)
            for batch in loader:
                batches.append(batch)
                room -= nbytes_of(batch)
                if room < 0:
                    break
        finally:
            loader.close()
        return batches

    def forget_resident(self):
        """Give the memory of :attr:`resident` back."""
        self.__dict__.pop("resident", None)
        self.accelerator.release_memory()

    def train_resident(self):
        """Seconds of epoch 1 without any loading; of all its batches, though fewer may be on the
        device."""
        seconds = self.seconds(lambda: self.trainer.epoch(ours(self.resident)))
        return seconds * self.sizes.steps / len(self.resident)


class Trainer:
    """The model and its optimiser."""

    def __init__(self, device, sizes, *, capturable=False):
        torch.manual_seed(0)
        self.model = SAGE(sizes.dim, len(sizes.fanouts)).to(device)
        # Capturable: the count of steps is on the device, where a CUDA graph can add to it.
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, capturable=capturable and device.type == "cuda"
        )

    def epoch(self, batches):
        """Train on an iterable of rows, labels and layers."""
        for inputs in batches:
            self.step_of(inputs)

    def step(self, batch):
        """Train on one of our batches."""
        self.step_of(inputs_of(batch))

    def step_of(self, inputs):
        """Train on rows, labels and layers."""
        x, y, layers = inputs
        self.optimizer.zero_grad(set_to_none=True)
        scores = self.model(x, layers)
        torch.nn.functional.cross_entropy(scores[: len(y)], y).backward()
        self.optimizer.step()


def inputs_of(batch):
    """Rows, labels and layers of one of our batches."""
    layers = [(block.to_pyg(), block.num_dst) for block in batch.blocks]
    return batch.features["feat"], batch.labels["label"], layers


def ours(batches):
    """Rows, labels and layers of our batches."""
    return map(inputs_of, batches)


def nbytes_of(batch):
    """Bytes of a batch's tensors."""
    tensors = [*batch.features.values(), *batch.labels.values()]
    for block in batch.blocks:
        tensors += [block.indptr, block.indices, block.src_nodes, block.positions]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def random_rows(count, dim):
    """float32 rows; a pattern that comes again, because drawing 2 GiB would take longer than the
    epochs."""
    rows = torch.empty(count, dim)
    pattern = torch.randn(min(count, 1 << 16), dim, generator=torch.Generator().manual_seed(0))
    for begin in range(0, count, len(pattern)):
        rows[begin : begin + len(pattern)] = pattern[: count - begin]
    return rows
