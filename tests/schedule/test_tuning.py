"""Constants of the schedule."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from numscorch.schedule import tuning


def test_each_constant_is_assigned_once() -> None:
    body = ast.parse(Path(tuning.__file__).read_text()).body
    names = Counter(target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name))
    assert [name for name, count in names.items() if count > 1] == []
