"""The documentation site builds without a warning, with every page, link and anchor, and nothing
from the network."""

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from fresh_processes import HANGING

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mkdocs", "material", "mkdocstrings_handlers.python")

pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(
        not (ROOT / "mkdocs.yml").exists(), reason="needs the checkout, not only its tests"
    ),
]


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what a browser loads to show it."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if "href" in found:
            (self.links if tag == "a" else self.loaded).append(found["href"])
        if "src" in found:
            self.loaded.append(found["src"])


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    missing = [package for package in PACKAGES if not installed(package)]
    if missing:
        pytest.skip(f'needs {", ".join(missing)}: pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGING
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARNING" not in said, said
    return {path: Page(path) for path in folder.rglob("*.html")}


def test_every_link_and_anchor_is_there(site):
    for path, page in site.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} links to {link}"
            if parts.fragment and target in site:
                assert unquote(parts.fragment) in site[target].anchors | {"__top"}, (
                    f"{path.name} links to {link}"
                )


def test_nothing_is_loaded_from_elsewhere(site):
    for path, page in site.items():
        assert [link for link in page.loaded if urlsplit(link).netloc] == [], path.name


def test_docstrings_are_rendered(site):
    for path in site:
        assert ":func:`" not in path.read_text() and "<autoref" not in path.read_text(), path.name


def test_the_reference_has_every_public_name_of_its_packages(site):
    references = [
        path
        for path in site
        if path.parent.name == "reference" and path.stem not in ("index", "cli")
    ]
    assert references
    for path in references:
        name = "pagraph" if path.stem == "pagraph" else f"pagraph.{path.stem}"
        package = importlib.import_module(name)
        own = {public for public in package.__all__ if is_ours(getattr(package, public))}
        assert {f"{name}.{public}" for public in own} <= site[path].anchors


def test_every_loader_has_what_all_loaders_do(site):
    from pagraph.engine.engine import LoaderControls

    shared = {name for name in vars(LoaderControls) if not name.startswith("_")}
    assert {"stats", "cache_plan", "state_dict", "trace"} <= shared
    for path in site:
        if path.parent.name != "reference" or path.stem not in ("pagraph", "dgl", "pyg"):
            continue
        name = "pagraph" if path.stem == "pagraph" else f"pagraph.{path.stem}"
        package = importlib.import_module(name)
        loaders = [n for n in package.__all__ if is_loader(getattr(package, n), LoaderControls)]
        assert loaders
        for loader in loaders:
            assert {f"{name}.{loader}.{each}" for each in shared} <= site[path].anchors
            assert f"{name}.{loader}.__setstate__" not in site[path].anchors


def is_loader(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def is_ours(value: object) -> bool:
    """Whether it is not a name of DGL or PyG that ``pagraph.dgl`` or ``pagraph.pyg`` passes on."""
    return not getattr(value, "__module__", getattr(value, "__name__", "")).startswith(
        ("dgl", "torch_geometric")
    )


def test_the_reference_has_every_verb_and_option(site):
    from pagraph.cli import VERBS

    (path,) = (path for path in site if path.name == "cli.html")
    assert {f"pagraph-{verb}" for verb in VERBS} <= site[path].anchors
    assert "--cache-policy TEXT" in path.read_text() and "[default: 1000]" in path.read_text()
