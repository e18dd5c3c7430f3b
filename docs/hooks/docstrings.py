"""Griffe extension: what our docstrings have and mkdocstrings does not know.

- Sphinx roles (``:func:`name```) become links, or code where the name has no page.
- A section ``Example:`` is one of examples, not a note.
- ``first, second: Text.`` documents two arguments.
- A function that has the name of its module (``pagraph.datasets.rmat``) hides it, as on import.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
SEVERAL_ARGUMENTS = re.compile(r"^( +)(\w+(?:, \w+)+)(:.*(?:\n\1 .*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring is None:
            return
        text = ROLE.sub(lambda role: link(obj, role[1]), obj.docstring.value)
        text = SEVERAL_ARGUMENTS.sub(lambda found: one_each(*found.groups()), text)
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Put functions in the place of modules of their name."""
        for module in [module for module in pkg.modules.values() if not module.is_alias]:
            function = module.members.get(module.name)
            if function is not None and module.name in (pkg.exports or ()):
                pkg.members[module.name] = griffe.Alias(module.name, target=function, parent=pkg)
            self.on_package(pkg=module)


def link(obj: griffe.Object, name: str) -> str:
    """The name as code that leads to its page, if it has one."""
    try:
        target = obj.resolve(name)
    except griffe.NameResolutionError:
        target = name
    return f'<autoref identifier="{target}" optional>`{name}`</autoref>'


def one_each(indent: str, names: str, text: str) -> str:
    """The same text for each name."""
    return "\n".join(f"{indent}{name}{text}" for name in names.split(", "))
