"""docs/troubleshooting.md quotes messages as the source has them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
OTHERS = "## Messages that are not ours"
# Letters that a string must have to be taken for a message: shorter ones are parts of others.
LEAST = 11

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the checkout, not only its tests")


def quoted() -> list[str]:
    """The messages that begin the rows of the page's tables, without the kind of error."""
    text = PAGE.read_text(encoding="utf-8").split(OTHERS)[0]
    rows = re.findall(r"^\| `(.+?)` \| ", text, re.MULTILINE)
    return [re.sub(r"^\w+(Error|Warning): ", "", row).replace("``", "`") for row in rows]


@cache
def messages() -> list[re.Pattern[str]]:
    """The strings of the source as patterns, where anything may stand for what is filled in."""
    found = set()
    for folder in ("pagraph", "partition", "datasets"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.add(
                        tuple(
                            part.value if isinstance(part, ast.Constant) else None
                            for part in node.values
                        )
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add((node.value,))
    kept = [
        parts for parts in found if sum(map(str.isalpha, "".join(filter(None, parts)))) >= LEAST
    ]
    return [
        re.compile("".join(".*" if part is None else re.escape(part) for part in parts))
        for parts in kept
    ]


def test_the_page_quotes_messages():
    assert len(quoted()) > 60


@pytest.mark.many
@pytest.mark.every
@pytest.mark.parametrize("message", quoted() if PAGE.exists() else [])
def test_a_message_is_in_the_source(message):
    assert any(pattern.fullmatch(message) for pattern in messages()), (
        "no string of the source gives this message"
    )
