"""What is installed: every room of the checkout under ``pagraph``, and nothing under any other
name.

``PAGRAPH_CHECKOUT`` names the checkout where the tests run from a copy outside of it,
``PAGRAPH_DIST`` the folder of the sdist and wheel under test; without it both are built here.
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from fresh_processes import HANGING

import pagraph

pytestmark = pytest.mark.wheel

ROOT = Path(os.environ.get("PAGRAPH_CHECKOUT", Path(__file__).parent.parent)).resolve()
SITE = Path(pagraph.__file__).parent.parent
DATA_FILES = {"pagraph/py.typed", "pagraph/report/page.html", "pagraph/run/page.html"}
ROOMS = {"partition": "pagraph/partition", "datasets": "pagraph/datasets"}
ALWAYS_INSTALLED = [
    "torch",
    "numpy",
    "scipy",
    "numba",
    "networkx",
    "click",
    "duckdb",
    "jinja2",
    "nanoarrow",
    "rich",
    "pyyaml",
]
INSTALLED = any(d.name == "pagraph" for d in importlib.metadata.distributions())
needs_install = pytest.mark.skipif(
    not INSTALLED, reason="needs pagraph to be installed, not only importable"
)
needs_checkout = pytest.mark.skipif(
    not (ROOT / "setup.py").exists(), reason="needs the checkout, not only its tests"
)


def checkout_modules() -> set[str]:
    """Every module of the checkout under its installed name."""
    names = set()
    for folder in ("pagraph", *ROOMS):
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT)
            if not any(str(inside).startswith(f"{room}/") for room in ROOMS.values()):
                names.add(str(inside).replace(f"{folder}/", f"{ROOMS.get(folder, folder)}/", 1))
    return names


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """sdist and wheel: those given, else built from a copy of the checkout with stale build
    leftovers."""
    if "PAGRAPH_DIST" in os.environ:
        return files_of(Path(os.environ["PAGRAPH_DIST"]))
    tmp = tmp_path_factory.mktemp("build")
    skip = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
    shutil.copytree(ROOT, tmp / "copy", symlinks=True, ignore=skip)
    stale = tmp / "copy" / "build" / "lib" / "pagraph" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(tmp / "dist"),
        str(tmp / "copy"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stdout + done.stderr
    return files_of(tmp / "dist")


def files_of(folder: Path) -> tuple[Path, Path]:
    """The one sdist and the one wheel of a folder."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@needs_checkout
@pytest.mark.compilers
def test_wheel_holds_every_module_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    info = f"pagraph-{pagraph.__version__}.dist-info/"
    assert {n for n in names if not n.startswith(info)} == checkout_modules() | DATA_FILES
    assert f"{info}licenses/LICENSE" in names


@needs_checkout
@pytest.mark.skipif(
    "PAGRAPH_DIST" not in os.environ, reason="needs the wheel to be what is installed"
)
def test_installed_package_is_what_the_wheel_holds(built):
    with zipfile.ZipFile(built[1]) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    assert [name for name, content in held.items() if (SITE / name).read_bytes() != content] == []
    installed = {str(path.relative_to(SITE)) for path in (SITE / "pagraph").rglob("*.*")}
    assert {name for name in installed if "__pycache__" not in name} == set(held)


@needs_checkout
@pytest.mark.compilers
def test_wheel_runs_away_from_the_checkout(built, tmp_path):
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path)
    code = (
        "import pagraph, pagraph.partition, pagraph.datasets, pagraph.cache, "
        "pagraph.features, pagraph.engine, pagraph.stats, "
        "pagraph.sampling, pagraph.train, pagraph.cli, pagraph.dgl, pagraph.pyg; "
        "print(pagraph.datasets.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=HANGING,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "pagraph" / "datasets" / "__init__.py")


@needs_checkout
@pytest.mark.compilers
def test_sdist_holds_the_sources_once(built):
    with tarfile.open(built[0]) as sdist:
        names = [n.split("/", 1)[1] for n in sdist.getnames() if "/" in n]
        links = [m.name for m in sdist.getmembers() if m.issym() or m.islnk()]
    assert links == []
    for name in (
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "partition/__init__.py",
        "pagraph/py.typed",
        "pagraph/report/page.html",
        "pagraph/run/page.html",
    ):
        assert names.count(name) == 1
    assert not any(n.startswith(tuple(ROOMS.values())) for n in names)


@pytest.mark.many
def test_no_text_names_a_file_that_the_wheel_has_not():
    """Neither a message nor a docstring: who installed a wheel has no docs/ and no examples/."""
    elsewhere = re.compile(r"\b(docs|examples|benchmarks|tests|conda)/|\w\.(md|ipynb|toml)\b")
    package = SITE / "pagraph"
    found = []
    for folder in (package, package / "partition", package / "datasets"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and elsewhere.search(text):
                    found.append(f"{path}:{node.lineno}")
    assert found == []


@pytest.mark.many
@needs_checkout
def test_pages_that_messages_name_are_there():
    named = [
        [ast.literal_eval(value) for value in node.args]
        for path in (ROOT / "pagraph").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "documentation"
    ]
    assert named
    for page, title in named:
        assert (ROOT / "docs" / f"{page}.md").read_text().startswith(f"# {title}\n")


@needs_checkout
@pytest.mark.parametrize("room", ROOMS)
def test_the_links_of_a_bare_checkout(room):
    link = ROOT / "pagraph" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_not_importable_under_another_name(room):
    code = f"import importlib.util as u; s = u.find_spec({room!r}); print(s.origin if s else '')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, timeout=HANGING
    )
    found = done.stdout.strip()
    assert done.returncode == 0
    assert not found or Path(found).resolve().parent != ROOT / room, (
        f"{room} is installed at the top level"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_importable_as_sub_packages(room):
    module = importlib.import_module(f"pagraph.{room}")
    assert Path(module.__file__).parent.parent == Path(pagraph.__file__).parent


@needs_install
def test_metadata():
    meta = importlib.metadata.metadata("pagraph")
    assert meta["Version"] == pagraph.__version__
    requires = importlib.metadata.requires("pagraph")
    always = {r.split(">=")[0] for r in requires if "extra ==" not in r}
    assert always == set(ALWAYS_INSTALLED)
    assert {"dgl", "pyg", "plot", "dev"} <= set(meta.get_all("Provides-Extra"))


def test_typed_marker_is_installed():
    assert (Path(pagraph.__file__).parent / "py.typed").is_file()


@needs_install
def test_command_line_entry_point_loads():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="pagraph")
    assert callable(entry.load())
