"""What the check `poolers` makes of what it saw, without a pooler."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks import poolers, poolers_look
from shardctl.checks.check import View
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Alias
from tests.fixtures.poolers import make as describe
from tests.fixtures.servers import local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "config", "codes"),
    [
        ("1.18.0", {"pool_mode": "transaction"}, ["no_prepared_statements"]),
        ("1.20.1", {"pool_mode": "statement"}, ["no_prepared_statements"]),
        ("1.21.0", {"max_prepared_statements": "0"}, ["no_prepared_statements"]),
        ("1.21.0", {"max_prepared_statements": "100"}, []),
        ("1.25.1", {"pool_mode": "transaction", "max_prepared_statements": "200"}, []),
        ("1.18.0", {"pool_mode": "session"}, ["pool_mode"]),
    ],
)
def test_prepared_statements_are_a_matter_of_version_and_configuration(
    tmp_path: Path, version: str, config: dict[str, str], codes: list[str]
) -> None:
    topology = local_topology(tmp_path, local_node(tmp_path, "a", 1, range(2)))
    pooler = describe(tmp_path, program="none").pooler
    topology = dataclasses.replace(topology, poolers={pooler.name: pooler})
    text = render.databases(topology, pooler, 1)
    entries = render.entries(topology, pooler)
    offered = {
        e.alias: Alias(e.alias, e.host, e.port, e.dbname, paused=False, disabled=False)
        for e in entries
    }
    looked = poolers_look.Looked(None, text=text, version=version, offered=offered, config=config)
    view: View[None] = View(topology, (), {}, {}, deep=False, poolers={pooler.name: looked})
    assert [finding.code for finding in poolers.judge(view)] == codes
