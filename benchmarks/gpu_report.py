"""What ``gpu.py`` found: figures by section, targets, failures; written after every section."""

import operator
import time
import traceback
from dataclasses import asdict, dataclass, field

import torch
from report import write

AT_LEAST, AT_MOST = operator.ge, operator.le


@dataclass(frozen=True)
class Target:
    """A figure that was promised.

    Attributes:
        name: What is measured.
        limit: What it must be at least, or at most.
        rule: ``AT_LEAST`` or ``AT_MOST``.
        measured: None where it was not.
        unit: "%" for shares, "x" for ratios, or a unit.
        note: Why it was not measured, or against what it was.
    """

    name: str
    limit: float
    rule: object
    measured: float | None
    unit: str
    note: str = ""

    @property
    def met(self):
        return None if self.measured is None else bool(self.rule(self.measured, self.limit))

    def cells(self):
        """Name, target, measured and met, as text."""
        wanted = f"{'at least' if self.rule is AT_LEAST else 'at most'} {self._text(self.limit)}"
        met = {True: "yes", False: "NO", None: "-"}[self.met]
        return [
            self.name,
            wanted,
            "-" if self.measured is None else self._text(self.measured),
            met,
            self.note,
        ]

    def _text(self, value):
        return f"{value:.1%}" if self.unit == "%" else f"{value:.2f} {self.unit}"

    def to_json(self):
        rule = "at least" if self.rule is AT_LEAST else "at most"
        return {
            "name": self.name,
            "rule": rule,
            "limit": self.limit,
            "measured": self.measured,
            "met": self.met,
        } | ({"note": self.note} if self.note else {})


@dataclass
class Report:
    """Collects.

    Attributes:
        name: Of the file, without its ending.
        folder: Where it is written; None: nowhere.
        about: The card and the settings.
        deadline: After this nothing is begun any more, by ``time.monotonic``.
    """

    name: str
    folder: object
    about: dict
    deadline: float
    sections: dict = field(default_factory=dict)
    targets: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    left_out: dict = field(default_factory=dict)

    def section(self, name):
        """A new section."""
        print(f"\n== {name} ==", flush=True)
        self.sections[name] = {}
        return Section(self, name)

    def write(self):
        """Write what there is so far, whole or not at all."""
        if self.folder is not None:
            found = {
                "sections": self.sections,
                "targets": [target.to_json() for target in self.targets],
            }
            write(
                self.name,
                {**self.about, **found, "failures": self.failures, "left_out": self.left_out},
                self.folder,
            )

    def table(self):
        """Target, measured, met, a line each."""
        rows = [["", "target", "measured", "met", ""], *(target.cells() for target in self.targets)]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )


@dataclass(frozen=True)
class Section:
    """Measures one thing after another; what fails, or has no time left, does not keep the next
    from being measured."""

    report: Report
    name: str

    def measure(self, name, work, *arguments):
        """``work(*arguments)``, which gives a dictionary or a number; None where there is
        nothing."""
        place = f"{self.name}: {name}"
        if time.monotonic() > self.report.deadline:
            self.report.left_out[place] = "no time was left"
            print(f"{name}: no time was left", flush=True)
            return None
        try:
            figures = work(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.report.failures.append(f"{place}: {type(error).__name__}: {error}")
            return None
        self.report.sections[self.name][name] = figures
        print(f"{name}: {_line(figures)}", flush=True)
        return figures

    def leave_out(self, name, reason):
        """Say why something is not measured."""
        self.report.left_out[f"{self.name}: {name}"] = reason
        print(f"{name}: not measured: {reason}", flush=True)

    def target(self, *arguments, **options):
        """Add a :class:`Target`."""
        self.report.targets.append(Target(*arguments, **options))


def card(accelerator):
    """What the accelerator is, and its name in a file's."""
    if accelerator.device.type != "cuda":
        return "interpreter", {"name": repr(accelerator)}
    properties = torch.cuda.get_device_properties(accelerator.device)
    name = properties.name
    about = {
        "name": name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "torch_geometric": _version("torch_geometric"),
    }
    return name.lower().removeprefix("nvidia ").replace(" ", "-"), about


def settings(sizes):
    """A dataclass of sizes as what ``json.dumps`` takes."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(sizes).items()
    }


def _line(figures):
    if not isinstance(figures, dict):
        return f"{figures:.4g}" if isinstance(figures, float) else figures
    shown = {
        key: value
        for key, value in figures.items()
        if isinstance(value, int | float | str) and key != "plan"
    }
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in shown.items()
    )


def _version(package):
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
