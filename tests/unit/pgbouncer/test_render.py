"""PgBouncer's files as text: to the byte the same, and every edit of them noticed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.pgbouncer import render
from shardctl.pgbouncer.render import Header
from tests.fixtures.fleets.facts import POOLER
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from shardctl.topology.model import AliasKind, Pooler, Topology

HERE = Path("/etc/pgbouncer")
FILE = """\
; Aliases of the shards of cluster photos, for pooler p1.
; `shardctl pgbouncer apply` writes this file: what is changed by hand is found and not overwritten.
; cluster: photos
; map version: 7
; checksum: 52fd0b0f7d9c3a0a

[databases]
app_b = host=10.0.0.2 port=5432 dbname=app
app_a = host=db-a.example port=5433 dbname=app
app_spare = host=::1 port=5434 dbname=app
shard0 = host=10.0.0.2 port=5432 dbname=app connect_query='SET search_path TO "shard0"'
shard1 = host=db-a.example port=5433 dbname=app connect_query='SET search_path TO "shard1"'
shard2 = host=10.0.0.2 port=5432 dbname=app connect_query='SET search_path TO "shard2"'
"""


def pooler_of(*kinds: AliasKind, **changes: Any) -> Pooler:
    given: dict[str, Any] = {"databases_file": HERE / "shards.ini", "aliases": kinds, **changes}
    return replace(POOLER, **given)


def topology_of(database: str = "app", host: str = "10.0.0.2") -> Topology:
    """Describe a fleet whose shards are not in the nodes' order, with a node that has none."""
    directory = Path("/nowhere")
    made = local_topology(
        directory,
        local_node(directory, "b", 5432, range(0, 3, 2), host="pg-b", pooler_host=host),
        local_node(directory, "a", 5433, range(1, 2), host="a", pooler_host="db-a.example"),
        local_node(directory, "spare", 5434, range(0), host="c", pooler_host="::1"),
        name=database,
    )
    return replace(made, cluster="photos")


TOPOLOGY = topology_of()
BOTH = pooler_of("shard", "node")
TEXT = render.databases(TOPOLOGY, BOTH, 7)


def test_the_file_is_what_an_operator_would_write() -> None:
    seal = re.compile("^; checksum: .*$", re.MULTILINE)
    assert seal.sub("", TEXT) == seal.sub("", FILE)


@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_a_value_that_would_become_something_else_is_refused(value: str) -> None:
    for topology in (topology_of(host=value), topology_of(database=value)):
        with raises_code("value_refused") as refused:
            render.databases(topology, pooler_of("shard"), 7)
        assert repr(value) in refused.value.message
        assert "\n" not in refused.value.message
        assert refused.value.hint


@given(
    st.text(st.characters(exclude_characters="\0\r\n", codec="utf-8"), min_size=1),
    st.integers(0, 10**12),
)
def test_the_header_is_read_back(cluster: str, version: int) -> None:
    text = render.databases(replace(TOPOLOGY, cluster=cluster), BOTH, version)
    assert render.header(text) == Header(cluster, version, edited=False)
    assert not render.is_edited(text)


@given(st.data())
def test_every_edit_of_one_character_is_noticed(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(TEXT)), "place")
    new = data.draw(st.sampled_from(["", " ", "\n", "\r", ";", "0", "f"]) | st.text(max_size=1))
    removed = data.draw(st.integers(0, 1), "removed")
    text = TEXT[:place] + new + TEXT[place + removed :]
    if text == TEXT:
        return
    assert render.is_edited(text)
    head = render.header(text)
    assert head is None or head.edited


def whole(**changes: Any) -> str:
    return render.configuration(TOPOLOGY, pooler_of("node", **changes), secret=False)


@pytest.mark.parametrize(
    "changes",
    [{"admin_user": "a\nb"}, {"databases_file": Path("/a\nb")}, {"config": Path("/a\nb/c")}],
)
def test_a_value_that_its_line_cannot_hold_is_refused(changes: dict[str, Any]) -> None:
    with raises_code("value_refused"):
        whole(**changes)
