"""The sections of a diagnosis, each of which may fail without the others; imports nothing that may
be broken."""

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

from .. import __version__
from ..errors import MissingDependencyError
from ..system.memory import file_system_of, host_available, host_limit, host_total
from ..system.units import bytes_text

_PACKAGES = (
    *(
        "torch",
        "numpy",
        "numba",
        "scipy",
        "dgl",
        "torch_geometric",
        "pyg_lib",
        "torch_sparse",
        "triton",
    ),
    *("pymetis", "networkx", "pyarrow", "pandas", "matplotlib", "lightning", "click", "rich"),
)
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "NUMBA_NUM_THREADS",
)
_LEAST_MEMORY = 1 << 30


@dataclass(frozen=True)
class Diagnosis:
    """Findings about this machine.

    Attributes:
        findings: What to mend, a sentence each.
        sections: Section to what it says, by name, in order.
    """

    findings: list[str] = field(default_factory=list)
    sections: dict[str, dict[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        count = len(self.findings)
        things = "nothing to mend" if not count else f"{count} thing{'s' * (count > 1)} to mend:"
        lines = [things, *(f"{i}. {finding}" for i, finding in enumerate(self.findings, 1))]
        for section, facts in self.sections.items():
            width = max(map(len, facts), default=0)
            lines += [
                "",
                section,
                *(f"  {name.ljust(width)}  {value}".rstrip() for name, value in facts.items()),
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All of it for ``json.dumps``."""
        return asdict(self)


def diagnose(disk: Path | None = None) -> Diagnosis:
    """Ask what is installed, what is native and what falls back, and what the machine has; takes a
    few seconds.

    Names no user and no folder of a user: folders below the home folder begin with ``~``.

    Args:
        disk: A folder whose disk is measured, too: 64 MiB are written into it for a second.
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
        except Exception as error:  # whatever a broken package raises
            found.sections[name] = {"failed": _line(error)}
            found.findings.append(f"{name}: {_line(error)}")
    return found


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, MissingDependencyError) else f"{type(error).__name__}: {text}"
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

    facts["torch"] = torch.__version__  # with the kind of build
    torch.from_numpy(np.zeros(1))  # raises where torch was built for another numpy
    return facts


def _dgl(found: Diagnosis) -> dict[str, str]:
    if not _installed("dgl"):
        return {"not installed": "pagraph.Loader and pagraph.pyg need none"}
    from ..dgl.diagnosis import graphbolt_words, sampling_paths

    return {**sampling_paths(), "dgl.graphbolt": graphbolt_words()}


def _pyg(found: Diagnosis) -> dict[str, str]:
    if not _installed("torch_geometric"):
        return {"not installed": "pagraph.Loader and pagraph.dgl need none"}
    from ..pyg.diagnosis import sampling_paths

    return sampling_paths()


def _fetching(found: Diagnosis) -> dict[str, str]:
    """Ask the fields' own functions about rows of each kind."""
    import numpy as np
    import torch

    from ..accelerator import accelerator_for
    from ..features.feature import HostFeature
    from ..features.field import can_cache, host_feature
    from ..graph.mapped import map_npy

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows, facts = torch.zeros(4, 3, device="cpu"), {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", np.zeros((4, 3), np.float32))
        kinds = {
            "in memory": rows,
            "in a mapped file": map_npy(f"{folder}/rows.npy"),
            "columns swapped": rows.T,
        }
        for kind, values in kinds.items():
            feature = host_feature(values, torch.device("cpu"))
            native = isinstance(feature, HostFeature) and feature.rows is not None
            reader = "pagraph's kernels" if native else "torch: rows are not contiguous"
            cached = can_cache(feature, accelerator_for(device), len(values))
            facts[kind] = (
                f"{reader}; on {device.type} a cache "
                f"{'serves them' if cached else 'would save nothing'}"
            )
    if (file_system := file_system_of(Path(tempfile.gettempdir()))) in ("tmpfs", "ramfs"):
        facts["in a mapped file"] += f" (tried on {file_system}, which is memory)"
    return facts


def _file_reads(found: Diagnosis) -> dict[str, str]:
    from ..system.disk.ways import WAYS, refusal, usable_way

    facts = {
        "past the page cache": usable_way(direct=True),
        "through the page cache": usable_way(direct=False),
    }
    refused = {way: refusal(way) for way in WAYS}
    return facts | {
        way: f"refused: {error.strerror}" for way, error in refused.items() if error is not None
    }


def _kernels(found: Diagnosis) -> dict[str, str]:
    from .._jit import cache_state

    folder, kept, compiled = cache_state()
    if not kept:
        found.findings.append(
            "compiled kernels are not kept, so that each process compiles them anew: there is no "
            "folder that only you "
            "may write to; set XDG_CACHE_HOME to one"
        )
    shown = _without_home(folder) if kept else "a temporary folder"
    if not folder:
        shown = "none"
    return {
        "folder": shown,
        "kept": "yes, private and writable" if kept else "no",
        "compiled": f"{compiled} kernels",
    }


def _memory(found: Diagnosis) -> dict[str, str]:
    available, limit = host_available(), host_limit()
    if available < _LEAST_MEMORY:
        found.findings.append(f"only {bytes_text(available)} of memory are available")
    return {
        "physical": bytes_text(host_total()),
        "available": f"{bytes_text(available)}, limits of control groups included",
        "control group": "no limit" if limit is None else f"at most {bytes_text(limit)}",
    }


def _cores(found: Diagnosis) -> dict[str, str]:
    import torch

    from ..system.threads import usable_cpus

    usable, threads = usable_cpus(), torch.get_num_threads()
    if threads > usable:
        found.findings.append(
            f"torch computes with {threads} threads on {usable} usable cores: set "
            f"OMP_NUM_THREADS={usable}"
        )
    facts = {
        "cores": f"{os.cpu_count()}, {usable} of them usable by this process",
        "threads of torch": str(threads),
    }
    return facts | {name: os.environ.get(name, "not set") for name in _VARIABLES}


def _gpu(found: Diagnosis) -> dict[str, str]:
    import torch

    from ..accelerator import accelerator_for
    from ..accelerator.triton_kernels import has_triton

    if not torch.cuda.is_available():
        if os.path.exists("/dev/nvidia0"):
            build = (
                "is built without CUDA"
                if torch.version.cuda is None
                else f"for CUDA {torch.version.cuda} fails"
            )
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
    rates, file_system = measure_disk(folder), file_system_of(folder)
    bypassed = (
        "bypassed (O_DIRECT)"
        if rates.bypassed
        else "could not be bypassed: figures may be those of memory"
    )
    return {
        "file system": file_system or "not known",
        "in order": f"{rates.in_order / 1e6:,.0f} MB/s in blocks of 1 MiB",
        "random": f"{rates.random:,.0f} reads/s of 4 KiB, 16 at a time "
        f"({rates.random * 4096 / 1e6:,.0f} MB/s)",
        "page cache": bypassed,
    }


_FILE_BYTES = 64 << 20
_PAGE, _BLOCK = 4096, 1 << 20
_AT_ONCE = 16
_SECONDS = 0.5  # of each measurement, at most


@dataclass(frozen=True)
class DiskRates:
    """Rates of a disk.

    Attributes:
        in_order: Bytes/s of reading in blocks of 1 MiB, one after the other.
        random: Reads/s of 4 KiB at random places, 16 at a time.
        bypassed: Whether the reads went past the system's page cache (``O_DIRECT``). Else the
            file's pages were dropped from it before, as far as the system did so, and the figures
            may be those of memory.
    """

    in_order: float
    random: float
    bypassed: bool


def measure_disk(folder: Path) -> DiskRates:
    """Write 64 MiB into a file without a name in a folder and read them for a second; OSError where
    it cannot be."""
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(_BLOCK)
        for _ in range(_FILE_BYTES // _BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path = f"/proc/self/fd/{file.fileno()}"
        try:
            reader, bypassed = os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError:  # a file system without it
            reader, bypassed = os.open(path, os.O_RDONLY), False
        try:
            return DiskRates(_bytes_in_order(reader), _random_reads(reader), bypassed)
        finally:
            os.close(reader)


def _bytes_in_order(reader: int) -> float:
    buffer = mmap.mmap(-1, _BLOCK)  # begins at a page, as O_DIRECT asks
    blocks = iter(range(0, _FILE_BYTES, _BLOCK))
    return _per_second(blocks, lambda place: os.preadv(reader, [buffer], place)) * _BLOCK


def _random_reads(reader: int) -> float:
    """Reads/s of several threads, each with pages of its own, so that no page is read twice."""
    places = list(range(0, _FILE_BYTES, _PAGE))
    random.Random(0).shuffle(places)

    def read(thread: int) -> float:
        buffer = mmap.mmap(-1, _PAGE)
        return _per_second(
            iter(places[thread::_AT_ONCE]), lambda place: os.preadv(reader, [buffer], place)
        )

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pagraph-doctor") as pool:
        return sum(pool.map(read, range(_AT_ONCE)))


def _per_second(places: Iterator[int], read: Callable[[int], object]) -> float:
    begin, count = time.perf_counter(), 0
    for place in places:
        read(place)
        count += 1
        if time.perf_counter() - begin > _SECONDS:
            break
    return count / (time.perf_counter() - begin)
