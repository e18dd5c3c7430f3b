"""Griffe extension: what our docstrings have and mkdocstrings does not know.

- Sphinx roles (``:func:`name```) become links, or code where the name has no page.
- A section ``Example:`` is one of examples, not a note.
- ``first, second: Text.`` documents two arguments.
- What only pickling and other libraries call has no entry.
- Fields of ``pagraph.train.TrainOptions``, ``_documented(default, text)``, are arguments with that
  default and text.
- A function that has the name of its module (``pagraph.datasets.rmat``) hides it, as on import.
"""

import ast
import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
SEVERAL_ARGUMENTS = re.compile(r"^( +)(\w+(?:, \w+)+)(:.*(?:\n\1 .*)*)", re.MULTILINE)

NOT_CALLED = {"__collate__", "__getstate__", "__setstate__"}
"""Methods without an entry: users do not call them."""

DOCUMENTED = "pagraph.options.training._documented"


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a package before they are parsed."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite all of them; by now every name can be found."""
        rewrite(pkg)


def rewrite(obj: griffe.Object) -> None:
    """Rewrite the docstrings of an object and of what it holds."""
    if obj.docstring is not None:
        text = ROLE.sub(lambda role: link(obj, role[1]), obj.docstring.value)
        text = SEVERAL_ARGUMENTS.sub(lambda found: one_each(*found.groups()), text)
        text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
        obj.docstring.value = with_fields(obj, text) if obj.is_class else text
    for name, member in list(obj.members.items()):
        if member.is_alias:
            continue
        if name in NOT_CALLED:
            member.docstring = None
            continue
        rewrite(member)
        if member.is_module and name in member.members and name in (obj.exports or ()):
            obj.members[name] = griffe.Alias(name, target=member.members[name], parent=obj)


def link(obj: griffe.Object, name: str) -> str:
    """The name as code that leads to its page, if it has one."""
    first, dot, rest = name.partition(".")
    try:
        target = obj.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        target = name
    return f'<autoref identifier="{target}" optional>`{name}`</autoref>'


def with_fields(cls: griffe.Class, text: str) -> str:
    """The docstring of a dataclass with its documented fields as arguments; their defaults become
    plain values."""
    lines = []
    for name, member in cls.members.items():
        value = member.value if member.is_attribute else None
        if isinstance(value, griffe.ExprCall) and value.canonical_path == DOCUMENTED:
            member.value, text_of = value.arguments[:2]
            lines.append(f"    {name}: {ast.literal_eval(str(text_of))}")
    section = "\n".join(["Args:", *lines, "", "Raises:"])
    return re.sub(r"^Raises:$", lambda _: section, text, flags=re.MULTILINE) if lines else text


def one_each(indent: str, names: str, text: str) -> str:
    """The same text for each name."""
    return "\n".join(f"{indent}{name}{text}" for name in names.split(", "))
