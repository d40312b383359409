"""What shardctl writes for PgBouncer and reads of it, as a real PgBouncer understands it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardctl.pgbouncer import render
from tests.fixtures.servers.pgbouncer import running
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Topology
    from tests.fixtures.servers.pgbouncer import PgBouncer

NOWHERE = Path("/nowhere")
FAILED = "config file loading failed"
# A host of PgBouncer's has no comma: it would be two.
VALUE = st.text(
    st.characters(exclude_characters="\0\r\n,", codec="utf-8")
    | st.sampled_from(" '\"\\;#=[]%\t\v$"),
    min_size=1,
    max_size=15,
)


@pytest.fixture(scope="module")
def pooler(pgbouncer_program: str, session_directory: Path) -> Iterator[PgBouncer]:
    """One PgBouncer for all tests of this file."""
    with running(session_directory / "rendered", program=pgbouncer_program) as made:
        yield made


def reload(pooler: PgBouncer, text: str) -> str:
    """Let it read a file of aliases, and give what it logged of that."""
    before = len(pooler.log())
    pooler.databases_file.write_text(text)
    with pooler.console() as console:
        console.reload()
    return pooler.log()[before:]


def offer(pooler: PgBouncer, topology: Topology, **changes: Any) -> None:
    changed = dataclasses.replace(pooler.pooler, **changes)
    assert FAILED not in reload(pooler, render.databases(topology, changed, 1))


def served(pooler: PgBouncer) -> dict[str, tuple[str | None, int, str]]:
    with pooler.console() as console:
        return {a.name: (a.host, a.port, a.dbname) for a in console.databases().values()}


def rendered(pooler: PgBouncer, topology: Topology) -> dict[str, tuple[str | None, int, str]]:
    entries = render.entries(topology, pooler.pooler)
    return {one.alias: (one.host, one.port, one.dbname) for one in entries}


@given(database=VALUE, hosts=st.lists(VALUE, min_size=20, max_size=20))
@settings(max_examples=30, deadline=None)
def test_any_host_and_database_arrive_as_they_are(
    pooler: PgBouncer, database: str, hosts: list[str]
) -> None:
    nodes = [
        local_node(NOWHERE, f"n{n}", 5000 + n, range(n, n + 1), pooler_host=host)
        for n, host in enumerate(hosts)
    ]
    topology = local_topology(NOWHERE, *nodes, name=database)
    offer(pooler, topology, aliases=("shard",))
    found = served(pooler)
    assert found == {f"shard{n}": (host, 5000 + n, database) for n, host in enumerate(hosts)}
