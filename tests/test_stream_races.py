"""The order of what the engine does in several streams, as a GPU would see it."""

import threading
import time

import pytest
import torch
from fresh_processes import HANGING
from stream_races import RaceDetector, Watch

import pagraph.features.gpu.reachable
import pagraph.sampling.gpu.run
from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator, StagingRing
from pagraph.accelerator.triton_kernels import launch
from pagraph.features.gpu.link import Link
from pagraph.graph.fields import FieldVersion
from pagraph.sampling import fixed_shapes

pytest.importorskip("triton")

pytestmark = pytest.mark.compilers


@pytest.fixture
def detector(monkeypatch):
    device = RaceDetector()

    def launch_and_tell(kernel, programs, *arguments, **constants):
        if programs > 0:
            device.launched(kernel, arguments)
        launch(kernel, programs, *arguments, **constants)

    for module in (pagraph.features.gpu.reachable, pagraph.sampling.gpu.run):
        monkeypatch.setattr(module, "launch", launch_and_tell)
    return device


def make_loader(device, there=True, **options):
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 90, (2, 700), generator=generator)
    graph = Graph.from_coo(
        *ends, num_nodes=90, ndata={"x": torch.randn(90, 5), "y": torch.arange(90)}
    )
    defaults = dict(
        fields=["x"], labels=["y"], batch_size=16, seed=1, shuffle=True, cache=0.3, num_workers=2
    )
    sampler = NeighborSampler([4, -1, 3])
    place = {"device": device, "sampling_device": device if there else "cpu"}
    return Loader(graph, torch.arange(90), sampler, **(defaults | place | options))


def compute(device, batch):
    """What a user does with a batch, on his stream."""
    with Watch(device):
        total = batch.features["x"].sum() + batch.labels["y"].sum() + batch.output_nodes.sum()
        for block in batch.blocks:
            total = (
                total
                + block.indptr.sum()
                + block.indices.sum()
                + block.positions.sum()
                + block.src_nodes.sum()
            )
    return total


def train(device, **options):
    loader = make_loader(device, **options)
    for _ in range(2):
        for batch in loader:
            compute(device, batch)
            del batch
    loader.close()


@pytest.mark.every
@pytest.mark.parametrize(
    "there", [True, False], ids=["sampled by the device", "sampled by the CPU"]
)
@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
def test_a_loader_has_no_races(detector, transfer, there):
    train(detector, transfer=transfer, there=there)
    assert detector.races == []


@pytest.mark.compilers
@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
def test_padding_has_no_races(detector, transfer, monkeypatch):
    """Of batches that the device samples kernel by kernel."""
    # As on a GPU, by torch: the detector does not see what NumPy does.
    monkeypatch.setattr(fixed_shapes, "_plain", lambda tensor: tensor)
    monkeypatch.setattr(
        fixed_shapes,
        "_moved",
        lambda local, moved, out: torch.index_select(moved, 0, local, out=out),
    )
    train(detector, transfer=transfer, there=True, shapes="fixed")
    assert detector.races == []


@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
def test_without_kernels_there_are_none(detector, monkeypatch, transfer):
    monkeypatch.setattr(HostAccelerator, "runs_kernels", False)
    with pytest.warns(RuntimeWarning) if transfer == "zero-copy" else pytest.MonkeyPatch.context():
        train(detector, transfer=transfer, there=False)
    assert detector.races == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_field_on_the_device_is_read_after_what_wrote_it(detector, waits):
    link, values = Link(detector), detector.empty((90, 4), torch.float32)
    for _ in range(2):
        with Watch(detector):
            values.fill_(1)
        if waits:
            link.wait_for_writes("x", FieldVersion.of(values), detector.current_stream)
        with link.stream.use():
            values.sum()
        link.stream.record().wait()  # a user who writes again knows that the reading is done
    assert (
        any("sum" in race and "on reading reads what user uses" in race for race in detector.races)
        is not waits
    )


def test_values_that_were_read_before_are_not_waited_for_again(detector):
    link, values = Link(detector), torch.zeros(9)
    link.wait_for_writes("x", FieldVersion.of(values), detector.current_stream)
    with Watch(detector):
        computed = detector.empty((3,), torch.float32).fill_(1)
    link.wait_for_writes("x", FieldVersion.of(values), detector.current_stream)
    with link.stream.use():
        computed.sum()
    assert len(detector.races) == 1


def test_threads_that_read_new_values_together_all_read_them_after_the_wait(detector):
    link, values, order = Link(detector), torch.zeros(9), []
    version, entered = FieldVersion.of(values), threading.Event()

    class Caller:
        def record(self):
            entered.set()
            time.sleep(0.1)
            order.append("waited")
            return detector.current_stream.record()

    def other():
        assert entered.wait(HANGING)
        link.wait_for_writes("x", version, Caller())
        order.append("reads")

    thread = threading.Thread(target=other)
    thread.start()
    link.wait_for_writes("x", version, Caller())
    thread.join()
    assert order == ["waited", "reads"]


@pytest.mark.compilers
def test_the_detector_sees_a_missing_wait(detector, monkeypatch):
    def only_own(self, tensors, ready):
        for tensor in tensors:
            self.current_stream.owns(tensor)

    monkeypatch.setattr(HostAccelerator, "hand_over", only_own)
    train(detector)
    assert any("on user reads what reading uses" in race for race in detector.races)


@pytest.mark.compilers
def test_the_detector_sees_memory_that_is_not_recorded(detector, monkeypatch):
    monkeypatch.setattr(
        HostAccelerator,
        "hand_over",
        lambda self, tensors, ready: self.current_stream.wait_for(ready),
    )
    # Not where, by chance, whoever frees all of it has waited for the user.
    for _ in range(5):
        train(detector)
        if any("is freed, user used it and was not recorded" in race for race in detector.races):
            return
    pytest.fail(f"no such race among {detector.races}")


def test_the_detector_sees_a_buffer_that_is_filled_again_too_early(detector, monkeypatch):
    source = torch.arange(64)
    ring = StagingRing(detector, slots=1, slot_bytes=128)
    stream = detector.stream("reading")
    with stream.use():
        (first,) = ring.upload([source])
    assert detector.races == []
    monkeypatch.setattr("stream_races.RacingEvent.wait", lambda self: None)
    with stream.use():
        ring.upload([source])
    assert any("writes what reading uses" in race for race in detector.races)
    assert torch.equal(first, source)
