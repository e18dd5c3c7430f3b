"""What docs/gpu.md says of what is not there: every row of its table happens, in those words."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import CudaAccelerator, HostAccelerator, OutOfMemory
from pagraph.accelerator.pinning import PinnedMemory
from pagraph.errors import MissingDependencyError
from pagraph.sampling import EdgeBatches, LaborSampler

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
GPU = torch.device("cuda", 0)


class WithoutTriton(HostAccelerator):
    runs_kernels = False


class WithTriton(HostAccelerator):
    """Kernels could run; none does in here."""

    runs_kernels = True


class Unpinnable(WithTriton):
    def pin(self, tensor):
        return None


class Driver(PinnedMemory):
    """Refuses everything."""

    def _is_pinned(self, address):
        return False

    def _register(self, begin, nbytes, device, *, writable):
        return "out of memory"


def graph_of(**fields):
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(100, (2, 500), generator=generator)
    return Graph.from_coo(*ends, num_nodes=100, ndata={"feat": torch.randn(100, 8)} | fields)


def load(sampler=None, graph=None, **options):
    graph = graph_of() if graph is None else graph
    sampler = NeighborSampler([2]) if sampler is None else sampler
    return Loader(graph, torch.arange(20), sampler, fields=["feat"], batch_size=10, **options)


def two_gpus(monkeypatch):
    """torch sees two GPUs; nothing is done on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load(device="cuda")


def no_such_gpu(monkeypatch):
    two_gpus(monkeypatch)
    load(device="cuda:7")


def two_devices(monkeypatch):
    two_gpus(monkeypatch)
    load(device="cpu", sampling_device="cuda:1")


def cache_above_what_is_free(_):
    device = HostAccelerator(memory=5000)
    taken = device.empty((3500,), torch.uint8)
    loader = load(device=device, cache=3000)
    loader._engine.fields.prepare()
    assert len(taken)


def cache_that_runs_out(_):
    class Short(HostAccelerator):
        refusals = 1

        def empty(self, shape, dtype):
            if len(shape) == 2 and self.refusals:
                self.refusals = 0
                raise OutOfMemory("no room")
            return super().empty(shape, dtype)

    load(device=Short(), cache=2000)._engine.fields.prepare()


def batch_that_never_fits(_):
    next(iter(load(device=WithoutTriton(memory=300), cache=0)))


def batches_that_cannot_be_recorded(_):
    class Unrecording(WithTriton):
        def recorded(self, work):
            raise RuntimeError("CUDA error: out of memory")

    device = Unrecording()
    load(device=device, sampling_device=device)


def batches_without_room(monkeypatch):
    monkeypatch.setattr("pagraph.engine.program._SETTLING", 1)
    monkeypatch.setattr("pagraph.engine.program._LEARNED", 1)

    class Full(WithTriton):
        def free_bytes(self):
            return 100, super().free_bytes()[1]

    device = Full()
    loader = load(device=device, sampling_device=device, transfer="zero-copy", cache=0)
    for _ in range(3):
        list(loader)


def field_elsewhere(_):
    next(iter(load(graph=_with_field_on_meta(), device=HostAccelerator())))


def _with_field_on_meta():
    graph = graph_of()
    graph.ndata["feat"] = torch.empty(100, 8, device="meta")
    return graph


def unpinnable(_):
    assert Driver().pin(torch.zeros(1 << 20), GPU) is None


def file_above_half_of_memory(monkeypatch):
    monkeypatch.setattr("pagraph.accelerator.pinning.address_on_disk", lambda address: True)
    monkeypatch.setattr("pagraph.accelerator.pinning.host_available", lambda: 1 << 20)
    assert Driver().pin(torch.from_numpy(np.zeros(1 << 20)), GPU) is None


def unpinnable_graph(_):
    device = Unpinnable()
    load(device=device, sampling_device=device, sampling_budget=0)


def graph_above_what_is_free(_):
    device = WithTriton(memory=1 << 20)
    load(device=device, sampling_device=device, sampling_budget="2MiB")


def rows_without_triton(_):
    next(iter(load(device=WithoutTriton(), transfer="zero-copy", cache=0)))


def sampling_without_triton(_):
    device = WithoutTriton()
    load(device=device, sampling_device=device)


def triton_without_compiler(monkeypatch):
    pytest.importorskip("triton")

    def launch(*_):
        raise RuntimeError("Failed to find C compiler.")

    device = CudaAccelerator(GPU)
    monkeypatch.setattr(device, "empty", HostAccelerator().empty)
    monkeypatch.setattr(device, "stream", HostAccelerator().stream)
    for name, value in {
        "has_triton": lambda: True,
        "interprets": lambda: False,
        "launch": launch,
    }.items():
        monkeypatch.setattr(f"pagraph.accelerator.cuda.{name}", value)
    assert not device.runs_kernels


def sampled_there(sampler):
    def sample(_):
        device = WithTriton()
        load(sampler, device=device, sampling_device=device)

    return sample


def dgl_without_cuda(monkeypatch):
    face = pytest.importorskip("pagraph.dgl")
    import dgl

    if dgl.ndarray.gpu(0).exist:
        pytest.skip("this DGL was built for CUDA")
    two_gpus(monkeypatch)
    face.DataLoader(
        dgl.graph(([0], [1])), torch.arange(2), dgl.dataloading.NeighborSampler([1]), device="cuda"
    )


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: Its first cell.
        happens: Makes it happen.
        kind: Of the error, or of the warning.
        words: What it says, as a regular expression.
    """

    name: str
    happens: object
    kind: type
    words: str


NUMBER = r"[\d.]+"


def sampled_there_for_pyg(**attributes):
    """A PyG loader that is to sample on the batches' device."""

    def happens(monkeypatch):
        from torch_geometric.data import Data

        from pagraph.pyg import NeighborLoader

        device = WithTriton()
        monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda of: device)
        edge_index = torch.randint(100, (2, 500))
        data = Data(edge_index=edge_index, num_nodes=100, **attributes)
        NeighborLoader(data, [2], device="cpu", sampling_device=device)

    return happens


def dgls_edge_columns(monkeypatch):
    face = pytest.importorskip("pagraph.dgl")
    import dgl

    device = WithTriton()
    monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda of: device)
    sampler = dgl.dataloading.NeighborSampler([1], prefetch_edge_feats=["w"])
    graph = dgl.graph(([0], [1]))
    face.DataLoader(graph, torch.arange(2), sampler, device="cpu", sampling_device=device)


CASES = [
    Case(
        "no CUDA",
        no_gpu,
        ValueError,
        r"device='cuda' needs a CUDA device, this machine has none that torch [\w.+]+ can use",
    ),
    Case(
        "no such GPU",
        no_such_gpu,
        ValueError,
        r"device must be one of \d+ CUDA devices, got 'cuda:7'",
    ),
    Case(
        "another kind of device",
        lambda _: load(device="meta"),
        ValueError,
        r"device must be 'cpu' or a CUDA device, got 'meta'",
    ),
    Case(
        "sampling on another device than the batches'",
        two_devices,
        ValueError,
        r"sampling_device must be 'cpu' or the batches' device 'cpu', got 'cuda:1'",
    ),
    Case(
        "`cache` above the card",
        lambda _: load(device=HostAccelerator(memory=1 << 20), cache="2MiB"),
        ValueError,
        rf"cache must be at most \d+ bytes \({NUMBER} .iB\) on [\w:]+, got \d+",
    ),
    Case(
        "`cache` above what is free",
        cache_above_what_is_free,
        RuntimeWarning,
        rf"the cache needs {NUMBER} .iB on [\w:]+, which has {NUMBER} .?i?B free: "
        rf'(it takes {NUMBER} .?i?B; set cache="{NUMBER}.?i?B" or less|nothing is cached; set '
        r'cache="0")',
    ),
    Case(
        "memory runs out while the cache is filled",
        cache_that_runs_out,
        RuntimeWarning,
        rf"[\w:]+ ran out of memory while the cache was filled: "
        rf'it takes {NUMBER} .?i?B; set cache="{NUMBER}.?i?B" or less',
    ),
    Case(
        "a batch does not fit, and no cache is left",
        batch_that_never_fits,
        OutOfMemory,
        r"a batch does not fit on [\w:]+ with the model, even without a cache: "
        r"lower batch_size, "
        r"fan-outs or sampling_budget, or use prefetch=0 \(",
    ),
    Case(
        "a host array that cannot be pinned",
        unpinnable,
        RuntimeWarning,
        rf"{NUMBER} [MG]iB of host memory could not be pinned \(out of memory\): its rows go "
        r"through a staging buffer "
        "instead",
    ),
    Case(
        'a file on disk larger than half of the memory, with `transfer="zero-copy"`',
        file_above_half_of_memory,
        RuntimeWarning,
        rf"{NUMBER} [MG]iB of host memory could not be pinned \(it is a file on disk of {NUMBER} "
        r"[MG]iB, more than "
        rf"half of the {NUMBER} [MG]iB of memory that are available\): its rows go through a "
        r"staging buffer instead",
    ),
    Case(
        "a field on another GPU",
        field_elsewhere,
        ValueError,
        r"a field must be on the CPU or on the loader's device [\w:]+, got one on [\w:]+",
    ),
    Case(
        "`sampling_budget` above what is free",
        graph_above_what_is_free,
        ValueError,
        r"sampling_budget must be at most the \d+ bytes that are free on [\w:]+ \(of \d+\), got "
        r"\d+",
    ),
    Case(
        "a graph that neither fits nor can be pinned",
        unpinnable_graph,
        ValueError,
        r"sampling_budget must be at least \d+ bytes, because the host memory of the graph's "
        r"indptr and indices cannot "
        r"be pinned on [\w:]+, got .+; sampling_device='cpu' needs none",
    ),
    Case(
        "torch without Triton, rows",
        rows_without_triton,
        RuntimeWarning,
        r"transfer 'zero-copy' is not possible for a field, because Triton is missing: its rows go "
        r"through a staging "
        r"buffer instead",
    ),
    Case(
        "torch without Triton, sampling",
        sampling_without_triton,
        MissingDependencyError,
        r"sampling on [\w:]+ needs Triton for that device \(pip install triton\); "
        r"sampling_device='cpu' needs none",
    ),
    Case(
        "Triton without its C compiler",
        triton_without_compiler,
        RuntimeWarning,
        r"Triton's kernels do not run on cuda:0 \(Failed to find C compiler\.\): rows go through a "
        r"staging buffer "
        r"instead, and only the CPU samples",
    ),
    Case(
        "DGL without CUDA",
        dgl_without_cuda,
        Exception,
        r"device='cuda:0' needs a DGL that was built for CUDA, this DGL [\w.+]+ was not: install "
        r"one from data\.dgl\.ai, or use pagraph\.pyg\.NeighborLoader, pagraph\.Loader with "
        r"block\.to_pyg\(\), or device='cpu'",
    ),
    Case(
        "a fan-out above 128 on the GPU",
        sampled_there(NeighborSampler([200])),
        ValueError,
        r"fanouts must be at most 128 or -1 for sampling on a device, got 200; use "
        r"sampling_device='cpu'",
    ),
    Case(
        "batches that cannot be recorded",
        batches_that_cannot_be_recorded,
        RuntimeWarning,
        r"batches on (cpu|cuda:0) are sampled kernel by kernel, which takes more Python "
        r"time: they could not be recorded \(CUDA error: out of memory\)",
    ),
    Case(
        "DGL's `prefetch_edge_feats` on the GPU",
        dgls_edge_columns,
        ValueError,
        r"sampling on a device needs a sampler without prefetch_edge_feats, got \['w'\]",
    ),
    Case(
        "batches of one launch for which there is no room",
        batches_without_room,
        RuntimeWarning,
        rf"batches on (cpu|cuda:0) are made kernel by kernel, which takes more Python "
        rf"time: \d+ batches in flight take {NUMBER} \w+, {NUMBER} \w+ more than "
        r"is free: lower prefetch, batch_size or cache",
    ),
    Case(
        'attributes that PyG selects, with `sampling_device="cuda"` of a PyG loader',
        sampled_there_for_pyg(edge_attr=torch.rand(500, requires_grad=True)),
        ValueError,
        "sampling on a device needs data that has only attributes of vertices and edges, in "
        "CPU tensors without gradients",
    ),
    Case(
        "edges to leave out on the GPU",
        sampled_there(EdgeBatches(NeighborSampler([2]), exclude=True)),
        ValueError,
        r"exclude must be False for sampling on a device, got True; use sampling_device='cpu'",
    ),
    Case(
        "another sampler on the GPU",
        sampled_there(LaborSampler([2])),
        ValueError,
        r"sampling on a device needs a NeighborSampler, got LaborSampler; use "
        r"sampling_device='cpu'",
    ),
    Case(
        "an unknown transfer",
        lambda _: load(transfer="fast"),
        ValueError,
        r"transfer must be one of 'auto', 'zero-copy', 'staging', got 'fast'",
    ),
]


def _rows():
    """The rows of the page's table: case and what happens."""
    if not PAGE.exists():
        pytest.skip("needs the checkout, not only its tests")
    section = PAGE.read_text().split("## Missing hardware and fallbacks")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE))


@pytest.mark.every
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_happens_in_the_words_of_the_page(case, monkeypatch):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            case.happens(monkeypatch)
        except case.kind as error:
            said = [str(error)]
        else:
            said = [str(w.message) for w in seen if w.category is case.kind]
    assert len(said) == 1
    assert re.match(case.words, said[0]), said[0]
    assert re.search(case.words, _rows()[case.name]), _rows()[case.name]


def test_every_row_of_the_page_is_tested():
    assert set(_rows()) - {"case", "---"} == {case.name for case in CASES}
