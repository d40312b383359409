"""What `hosts check` looks for is what a move will ask for."""

from __future__ import annotations

import re

from shardctl.checks import hosts
from shardctl.hosts import scripts


def test_a_pooler_s_host_is_looked_through_for_what_its_guard_needs() -> None:
    required = re.search(r"for program in (.*); do", scripts.source("guard"))
    assert required is not None
    assert set(hosts.TOOLS_OF_GUARDS) == set(required[1].split())
