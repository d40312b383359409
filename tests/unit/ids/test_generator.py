"""The SQL of the generator as text: its functions, its numbers, its quoting."""

from __future__ import annotations

import re

import pytest

from shardctl.ids import generator
from shardctl.ids.layout import Layout

FUNCTIONS = {
    "next_id(regclass, regclass, integer)",
    "next_id_of_new_block(regclass, regclass, integer, bigint, bigint)",
    "open_drawn_block(regclass, regclass, bigint)",
    "open_block_at(regclass, bigint, bigint)",
    "open_block(integer, timestamp with time zone)",
    "id_time(bigint)",
    "id_shard(bigint)",
    "id_sequence(bigint)",
    "id_floor(timestamp with time zone, integer)",
    "shard_of(smallint)",
    "shard_of(integer)",
    "shard_of(bigint)",
    "shard_of(numeric)",
    "shard_of(text)",
    "shard_of(uuid)",
}
KINDS = ["strict", "classic"]
SPLITS = [Layout(), Layout(0, 10, 30, 1, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", SPLITS)
def test_the_rendered_sql_has_exactly_these_functions(kind: str, layout: Layout) -> None:
    rendered = generator.render(layout, kind, 2000)
    assert set(generator.bodies(rendered)) == FUNCTIONS
    assert rendered.count("CREATE OR REPLACE FUNCTION") == len(FUNCTIONS)
    assert rendered.count("$shardctl$") == 2 * len(FUNCTIONS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", SPLITS)
def test_functions_that_keep_the_callers_search_path_qualify_their_operators(
    kind: str, layout: Layout
) -> None:
    rendered = generator.render(layout, kind, 2000)
    bodies = generator.bodies(rendered)
    pinned = set(
        re.findall(r"FUNCTION shardctl\.(\w+)\(.*\n.*SET search_path = pg_catalog", rendered)
    )
    assert pinned == {
        "next_id_of_new_block", "open_drawn_block", "open_block_at", "open_block"
    }  # fmt: skip
    for name in FUNCTIONS:
        if name.partition("(")[0] in pinned:
            continue
        body, _, _ = bodies[name].rpartition("\n")
        body = re.sub(r"--.*|:=|::|OPERATOR\(pg_catalog\.\S+?\)|'[^']*'", "", body)
        assert not re.search(r"[-+*/<>=&|%]", body), name
        calls = set(re.findall(r"(?<![\w.])(\w+)\(", body))
        assert calls <= {"greatest", "extract", "coalesce", "least", "bit"}, name
