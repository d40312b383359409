"""Fixtures for what breaks on purpose, and how much of it is tested."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

EVERY_POINT = "SHARDCTL_EVERY_POINT"
"""The variable that lets all points be tested, and not every eighth of each test's."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(EVERY_POINT):
        return
    seen: dict[str, itertools.count[int]] = {}
    left_out = [
        item
        for item in items
        if "fault/test_move_" in item.nodeid
        and next(seen.setdefault(item.nodeid.partition("[")[0], itertools.count())) % 8
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
