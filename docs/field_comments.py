"""Show the comment after a dataclass field as its description in the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_attribute(self, *, attr: griffe.Attribute, **others: Any) -> None:
        if attr.docstring or attr.lineno is None or not attr.lines_collection:
            return
        line = attr.lines_collection[attr.filepath][attr.lineno - 1]
        comment = re.search(r"  # (.+)$", line)
        if comment and attr.parent and attr.parent.is_class:
            attr.docstring = griffe.Docstring(comment[1], parent=attr, lineno=attr.lineno)
