"""MkDocs hook: what pages link to outside of docs/ (examples, CONTRIBUTING.md, ...) is part of the
site, too.

Pages link as they lie in the repository, so that the links also work where the repository is read.
On the site, the files of docs/ lie at the top and the others beside them.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent.parent
PATTERNS = (
    "CITATION.cff",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/NOTES.md",
    "conda/recipe.yaml",
    "examples/*.py",
    "examples/*.ipynb",
)
LINK = re.compile(r"(?<=\]\()(?:\.\./|docs/)[^)#\s]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/."""
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            files.append(
                File(
                    str(path.relative_to(ROOT)),
                    str(ROOT),
                    config.site_dir,
                    config.use_directory_urls,
                )
            )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between files of the site."""
    inside = page.file.src_dir != str(ROOT)
    here = posixpath.join("docs" if inside else "", posixpath.dirname(page.file.src_uri))

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[0])).removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(on_site, markdown)
