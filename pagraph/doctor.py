"""What works on this machine and what falls back, in sections that may fail one by one.

This module imports nothing that may be broken. Each section imports what it asks about.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import __version__
from .errors import PaGraphError
from .system.memory import file_system_of, host_available, host_limit, host_total
from .system.tables import Table, output_width, wrapped
from .system.units import bytes_text

_PACKAGES = (
    "torch",
    "numpy",
    "numba",
    "scipy",
    "dgl",
    "torch_geometric",
    "pyg_lib",
    "torch_sparse",
    "triton",
    "pymetis",
    "networkx",
    "duckdb",
    "nanoarrow",
    "pandas",
    "matplotlib",
    "lightning",
    "click",
    "rich",
)
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "KMP_AFFINITY",
    "NUMBA_NUM_THREADS",
)
# Less is a finding: torch takes much of it, and leaves little for a cache.
_LEAST_MEMORY = 1 << 30


@dataclass(frozen=True)
class Diagnosis:
    """Findings about this machine.

    Attributes:
        findings: What to fix, a sentence each.
        sections: Section to its facts, by name, in order.
    """

    findings: list[str] = field(default_factory=list)
    sections: dict[str, dict[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        width = output_width()
        count = len(self.findings)
        lines = ["nothing to fix"]
        if count:
            lines = [f"{count} thing{'s' * (count > 1)} to fix:"]
        for i, finding in enumerate(self.findings, 1):
            lines += wrapped(f"{i}. {finding}", width, "   ")
        for section, facts in self.sections.items():
            rows = [["", ""], *([f"  {name}", value] for name, value in facts.items())]
            lines += ["", Table(rows, section, left=(0, 1)).text(width)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis for ``json.dumps``."""
        return asdict(self)


def diagnose(disk: Path | None = None) -> Diagnosis:
    """Find out what is installed, what is native, what falls back, and what the machine has.

    Takes a few seconds. Folders below the home folder begin with ``~``, so that no user is named.

    Args:
        disk: A folder whose disk is measured, too, with a file of 64 MiB for a second.
    """
    found = Diagnosis()
    sections: dict[str, Callable[[Diagnosis], dict[str, str]]] = {
        "versions": _versions,
        "DGL: who samples": _dgl,
        "PyG: who samples": _pyg,
        "who reads rows": _fetching,
        "how files are read": _file_reads,
        "compiled kernels": _kernels,
        "memory": _memory,
        "cores": _cores,
        "GPU": _gpu,
    }
    if disk is not None:
        sections["disk"] = lambda found: _disk(found, disk)
    for name, section in sections.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.sections[name] = section(found)
        except Exception as error:  # a broken package may raise anything
            found.sections[name] = {"failed": _line(error)}
            found.findings.append(f"{name}: {_line(error)}")
    return found


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    # Our own message says what to do. A broken package's error needs its type.
    if not isinstance(error, PaGraphError):
        text = f"{type(error).__name__}: {text}"
    return _without_home(text)[:300]


def _without_home(text: str) -> str:
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(home, "~") if home else text


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _versions(found: Diagnosis) -> dict[str, str]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    facts = {"pagraph": __version__, "Python": platform.python_version(), "system": system}
    for package in _PACKAGES:
        facts[package] = importlib.metadata.version(package) if _installed(package) else "-"
    import numpy as np
    import torch

    facts["torch"] = torch.__version__  # with the kind of build, unlike the package's version
    torch.from_numpy(np.zeros(1))  # raises if torch was built for another numpy
    return facts


def _dgl(found: Diagnosis) -> dict[str, str]:
    if not _installed("dgl"):
        return {"not installed": "pagraph.Loader and pagraph.pyg need none"}
    from .dgl.diagnosis import graphbolt_words, sampling_paths

    return {**sampling_paths(), "dgl.graphbolt": graphbolt_words()}


def _pyg(found: Diagnosis) -> dict[str, str]:
    if not _installed("torch_geometric"):
        return {"not installed": "pagraph.Loader and pagraph.dgl need none"}
    from . import pyg as face
    from .pyg.package import import_pyg

    theirs = import_pyg().loader
    ours = [name for name in theirs.__all__ if getattr(face, name) is not getattr(theirs, name)]
    return {
        **dict.fromkeys(ours, "pagraph's kernels"),
        "pyg-lib, torch-sparse": "not needed by these",
        "other names of torch_geometric.loader": "PyG's own, unchanged",
        "neighbor_sampler=...": "its own code, in the training loop's thread unless num_workers is "
        "set",
        "a subclass with its own filter_fn or collate_fn": "pagraph's kernels in torch's workers, "
        "without a cache",
    }


def _fetching(found: Diagnosis) -> dict[str, str]:
    """Ask the functions that read fields about rows of each kind."""
    import numpy as np
    import torch

    from .accelerator import accelerator_for
    from .features.feature import HostFeature
    from .features.field import can_cache, host_feature
    from .graph.mapped import map_npy

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows = torch.zeros(4, 3, device="cpu")
    facts = {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", np.zeros((4, 3), np.float32))
        kinds = {
            "in memory": rows,
            "in a mapped file": map_npy(f"{folder}/rows.npy"),
            "columns swapped": rows.T,
        }
        for kind, values in kinds.items():
            feature = host_feature(values, torch.device("cpu"))
            is_native = isinstance(feature, HostFeature) and feature.rows is not None
            reader = "pagraph's kernels" if is_native else "torch: rows are not contiguous"
            is_cached = can_cache(feature, accelerator_for(device), len(values))
            use = "serves them" if is_cached else "would save nothing"
            facts[kind] = f"{reader}; on {device.type} a cache {use}"
    file_system = file_system_of(Path(tempfile.gettempdir()))
    if file_system in ("tmpfs", "ramfs"):  # a file there says nothing about a disk
        facts["in a mapped file"] += f" (tried on {file_system}, which is memory)"
    return facts


def _file_reads(found: Diagnosis) -> dict[str, str]:
    from .system.disk.ways import WAYS, refusal, usable_way

    facts = {
        "past the page cache": usable_way(direct=True),
        "through the page cache": usable_way(direct=False),
    }
    for way in WAYS:
        error = refusal(way)
        if error is not None:
            facts[way] = f"refused: {error.strerror}"
    return facts


def _kernels(found: Diagnosis) -> dict[str, str]:
    from ._jit import check_compiler
    from ._kernel_folder import kernel_folder

    folder = kernel_folder()
    why = _without_home(folder.why_not_kept())
    if why:
        found.findings.append(
            f"compiled kernels are not kept, so that each process compiles them again: {why}"
        )
    facts = {
        "folder": _without_home(folder.path) or "none",
        "kept": "no" if why else "yes, private and writable",
        "compiled": f"{folder.count()} kernels",
    }
    try:
        check_compiler()
    except PaGraphError as error:
        facts["compiler"] = "off"
        found.findings.append(str(error))
    return facts


def _memory(found: Diagnosis) -> dict[str, str]:
    available = host_available()
    limit = host_limit()
    if available < _LEAST_MEMORY:
        found.findings.append(f"only {bytes_text(available)} of memory are available")
    return {
        "physical": bytes_text(host_total()),
        "available": f"{bytes_text(available)}, limits of control groups included",
        "control group": "no limit" if limit is None else f"at most {bytes_text(limit)}",
    }


def _cores(found: Diagnosis) -> dict[str, str]:
    import torch

    from .system.threads import usable_cpus

    usable = usable_cpus()
    threads = torch.get_num_threads()
    # In a container torch may count the machine's cores, not those of its control group.
    if threads > usable:
        found.findings.append(
            f"torch computes with {threads} threads on {usable} usable cores: set "
            f"OMP_NUM_THREADS={usable}"
        )
    load = os.getloadavg()[0]
    if load > usable and "OMP_WAIT_POLICY" not in os.environ:
        found.findings.append(
            f"{usable} usable cores are busy (load average {load:.1f}), and torch's waiting "
            "threads take what is left: set OMP_WAIT_POLICY=passive"
        )
    facts = {
        "cores": f"{os.cpu_count()}, {usable} of them usable by this process",
        "threads of torch": str(threads),
    }
    return facts | {name: os.environ.get(name, "not set") for name in _VARIABLES}


def _gpu(found: Diagnosis) -> dict[str, str]:
    import torch

    from .accelerator import accelerator_for
    from .accelerator.triton_kernels import has_triton

    if not torch.cuda.is_available():
        if os.path.exists("/dev/nvidia0"):  # the driver is installed, so torch is at fault
            build = f"for CUDA {torch.version.cuda} fails"
            if torch.version.cuda is None:
                build = "is built without CUDA"
            found.findings.append(
                f"there is a GPU, and torch {torch.__version__} {build}: it cannot be used"
            )
        return {"none": "batches are delivered on the CPU"}
    facts = {
        "CUDA": str(torch.version.cuda),
        "Triton": "installed" if has_triton() else "not installed",
    }
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        accelerator = accelerator_for(device)
        assert accelerator is not None
        free, total = accelerator.free_bytes()
        how = "kernels run: zero-copy reads, sampling on the device"
        if not accelerator.runs_kernels:
            how = "kernels do not run: rows go through a staging buffer, the CPU samples"
            found.findings.append(
                f"Triton's kernels do not run on {device}: install triton and a C compiler"
            )
        name = torch.cuda.get_device_name(device)
        facts[str(device)] = f"{name}, {bytes_text(free)} of {bytes_text(total)} free; {how}"
    return facts


def _disk(found: Diagnosis, folder: Path) -> dict[str, str]:
    rates = measure_disk(folder)
    file_system = file_system_of(folder)
    page_cache = "bypassed (O_DIRECT)"
    if not rates.bypassed:
        page_cache = "could not be bypassed: figures may be those of memory"
    return {
        "file system": file_system or "not known",
        "in order": f"{rates.in_order / 1e6:,.0f} MB/s in blocks of 1 MiB",
        "random": f"{rates.random:,.0f} reads/s of 4 KiB, 16 at a time "
        f"({rates.random * 4096 / 1e6:,.0f} MB/s)",
        "page cache": page_cache,
    }


_FILE_BYTES = 64 << 20  # 16,384 pages; a fast disk reads all of them in less than half a second
_PAGE = 4096
_BLOCK = 1 << 20
_AT_ONCE = 16  # threads with a read each: disks need several reads at once to reach their rate
_SECONDS = 0.5  # of each measurement, at most


@dataclass(frozen=True)
class DiskRates:
    """Rates of a disk.

    Attributes:
        in_order: Bytes/s of reading in blocks of 1 MiB, one after the other.
        random: Reads/s of 4 KiB at random places, 16 at a time.
        bypassed: Whether the reads bypassed the system's page cache (``O_DIRECT``). Otherwise the
            system was only asked to drop the file's pages, and the rates may be those of memory.
    """

    in_order: float
    random: float
    bypassed: bool


def measure_disk(folder: Path) -> DiskRates:
    """Write 64 MiB into an unnamed file in a folder and read them for a second.

    Raises:
        OSError: The folder cannot be written to, or the disk is full.
    """
    # Without a name, so that nothing is left even if the process is killed.
    with tempfile.TemporaryFile(dir=folder) as file:
        # Random bytes, as some disks and file systems compress.
        block = os.urandom(_BLOCK)
        for _ in range(_FILE_BYTES // _BLOCK):
            file.write(block)
        file.flush()
        # Only pages that are on the disk can be dropped.
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # A second descriptor, as O_DIRECT is a property of the descriptor, and writing needs none.
        path = f"/proc/self/fd/{file.fileno()}"
        bypassed = True
        try:
            reader = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:  # a file system without it
            reader = os.open(path, os.O_RDONLY)
            bypassed = False
        try:
            return DiskRates(_bytes_in_order(reader), _random_reads(reader), bypassed)
        finally:
            os.close(reader)


def _bytes_in_order(reader: int) -> float:
    buffer = mmap.mmap(-1, _BLOCK)  # begins at a page, as O_DIRECT asks
    blocks = iter(range(0, _FILE_BYTES, _BLOCK))
    return _per_second(blocks, lambda place: os.preadv(reader, [buffer], place)) * _BLOCK


def _random_reads(reader: int) -> float:
    """Reads/s of several threads, which read each page at most once."""
    places = list(range(0, _FILE_BYTES, _PAGE))
    random.Random(0).shuffle(places)

    def read(thread: int) -> float:
        buffer = mmap.mmap(-1, _PAGE)
        own = iter(places[thread::_AT_ONCE])
        return _per_second(own, lambda place: os.preadv(reader, [buffer], place))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pagraph-doctor") as pool:
        return sum(pool.map(read, range(_AT_ONCE)))


def _per_second(places: Iterator[int], read: Callable[[int], object]) -> float:
    begin = time.perf_counter()
    count = 0
    for place in places:
        read(place)
        count += 1
        if time.perf_counter() - begin > _SECONDS:
            break
    return count / (time.perf_counter() - begin)
