"""The names that poolers offer: which are refused when the file is loaded, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.topology.loader import TopologyInvalid, parse

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

FILE = Path("topology.yaml")
BASE = """\
cluster: photos
shards: {count: 8, schema: 'shard{id}'}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-3}
  b: {host: i, port: 1, shards: 4-7}
poolers:
  p: {host: j, port: 1, config: p.ini, aliases: [node]}
  q: {host: k, port: 1, config: q.ini, aliases: [shard]}
"""
NODE, SHARD = "topology.yaml:8:49: poolers.p.aliases:", "topology.yaml:9:49: poolers.q.aliases:"


def loaded(*changes: tuple[str, str]) -> Topology:
    text = BASE
    for old, new in changes:
        assert text.count(old) == 1, "the snippet changes one place"
        text = text.replace(old, new)
    return parse(text.encode(), FILE)


def refused(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(TopologyInvalid) as error:
        loaded(*changes)
    return str(error.value).splitlines()


# (what is changed in BASE, into what, where that is refused)
CHANGES = [
    *(
        ("'shard{id}'", schema, SHARD)
        for schema in (
            "'shard {id}'", "'größe{id}'", "'a\"b{id}'", f"'{'s' * 61}{{id}}'",
        )
    ),
    ("name: app", "name: my app", NODE),
    ("name: app", f"name: {'d' * 60}", NODE),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "place"), CHANGES)
def test_what_pgbouncer_cannot_offer_is_refused_at_the_pooler_that_would(
    old: str, new: str, place: str
) -> None:
    [line] = refused((old, new))
    assert line.startswith(place)


CLASH = (("'shard{id}'", "'app_{id}'"), ("  a:", "  3:"))


def test_one_name_for_a_node_and_a_shard_is_refused_where_both_are_offered() -> None:
    [line] = refused(*CLASH, ("[node]", "[shard, node]"))
    assert line.startswith(f"{NODE} app_3 ")
