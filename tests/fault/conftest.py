"""How long what breaks on purpose may take."""

from __future__ import annotations

import pytest

LONGEST_S = 1800
"""How long one test may take, which does what takes seconds at many points."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("fault"):
            # Every wait has its own bound; a test of many points adds them up on a busy machine.
            item.add_marker(pytest.mark.timeout(LONGEST_S))
