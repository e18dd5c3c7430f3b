"""What a release is made of: the version in one place, its copies, and the changelog's section as
the release's text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pagraph

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / ".ci" / "release-notes"

pytestmark = pytest.mark.skipif(not NOTES.exists(), reason="needs the checkout, not only its tests")


def pyproject() -> dict:
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_the_source_alone():
    project = pyproject()
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "pagraph.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", pagraph.__version__)


def test_the_documentation_has_one_address():
    address = pyproject()["project"].get("urls", {}).get("Documentation")
    found = re.search(r"^site_url: (.+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert address == (found and found[1])


def test_the_citation_has_the_version_and_both_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pagraph.__version__
    dois = [each["doi"] for each in citation["references"]]
    assert dois == ["10.1145/3419111.3421281", "10.1109/TPDS.2021.3065737"]


def test_each_dependency_says_what_it_is_for():
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    used = ("dgl", "pyg", "plot", "metis", "databases")
    assert {*extras} == {*used, "docs", "dev", "dev-clients"}
    listed = sum((extras[name] for name in used), project["dependencies"])
    text = (ROOT / "docs" / "design.md").read_text()
    section = text.split("\n## Dependencies\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:`\[\w+\]` \| )?(`.*?) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert named == [re.match(r"[\w-]+", each).group() for each in listed]


def test_the_recipe_has_the_version_and_the_dependencies():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == pagraph.__version__
    project = pyproject()["project"]
    # conda calls these by other names, and puts a space before the bound.
    names = {"torch": "pytorch", "duckdb": "python-duckdb"}
    wanted = set()
    for each in project["dependencies"]:
        name, bound = re.match(r"([\w-]+)(.*)", each).groups()
        wanted.add(f"{names.get(name, name)} {bound}")
    run = set(recipe["requirements"]["run"])
    assert run == wanted | {"__linux", "python >=${{ python_min }}"}
    assert project["requires-python"] == f">={recipe['context']['python_min']}"


def test_the_recipe_renders():
    rattler_build = pytest.importorskip("rattler_build")
    recipe = rattler_build.Stage0Recipe.from_file(str(ROOT / "conda" / "recipe.yaml"))
    (variant,) = recipe.render(rattler_build.VariantConfig(), rattler_build.RenderConfig())
    rendered = variant.recipe.to_dict()
    version = pagraph.__version__
    assert rendered["package"] == {"name": "pagraph", "version": version}
    (source,) = rendered["source"]
    assert source["url"].endswith(f"/p/pagraph/pagraph-{version}.tar.gz")
    scripts = pyproject()["project"]["scripts"]
    points = [f"{name} = {target}" for name, target in scripts.items()]
    assert rendered["build"]["python"]["entry_points"] == points
    assert rendered["requirements"]["host"][0] == "python 3.10.*"


def notes(changelog: str, version: str, folder: Path) -> subprocess.CompletedProcess:
    """The script beside another changelog."""
    (folder / ".ci").mkdir()
    (folder / ".ci" / "release-notes").write_text(NOTES.read_text())
    (folder / "pagraph").mkdir()
    (folder / "pagraph" / "__init__.py").write_text(f'"""Text."""\n\n__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    return subprocess.run(
        [sys.executable, str(folder / ".ci" / "release-notes")], capture_output=True, text=True
    )


CHANGELOG = """# Changelog

## [Unreleased]

- Not yet.

## [1.2.0] - 2027-01-31

### Added

- A thing.

## 1.1.0 - 2026-12-01

- An older one.

## 1.0.0

"""


@pytest.mark.parametrize(
    ("version", "text"),
    [("1.2.0", "### Added\n\n- A thing.\n"), ("1.1.0", "- An older one.\n")],
)
def test_the_changelogs_section_is_the_releases_text(tmp_path, version, text):
    done = notes(CHANGELOG, version, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.3.0", "must have a section '## 1.3.0', got Unreleased, 1.2.0, 1.1.0, 1.0.0"),
        ("1.0.0", "section '## 1.0.0' must say something, it is empty"),
    ],
)
def test_a_release_without_a_text_is_refused(tmp_path, version, said):
    done = notes(CHANGELOG, version, tmp_path)
    assert done.returncode == 1 and done.stdout == "" and said in done.stderr


def test_the_changelog_of_the_checkout_can_be_released():
    done = subprocess.run(
        [sys.executable, str(NOTES), "Unreleased"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "### Added" in done.stdout
