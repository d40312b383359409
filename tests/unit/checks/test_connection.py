"""What `verify` reports of connections without asking a server."""

from __future__ import annotations

from typing import cast

from shardctl.checks import connection
from shardctl.checks.check import View
from shardctl.checks.connection import Seen
from shardctl.topology.model import NodeName, Topology


def test_a_server_on_another_machine_that_proves_nothing_is_reported() -> None:
    modes = {"here": None, "a": "prefer", "b": "verify-full", "c": "require", "d": "verify-ca"}
    seen = {NodeName(name): Seen(mode, public=False) for name, mode in modes.items()}
    view = View(cast("Topology", None), (), {}, seen, deep=False)
    found = list(connection.judge(view))
    assert {one.code for one in found} == {"server_unproven"}
    assert [one.node for one in found] == ["a", "c", "d"]
