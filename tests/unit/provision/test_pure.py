"""What `init` computes without a server: chunk sizes, statement splitting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.postgres.split import split
from shardctl.provision import chunks

PIECES = [
    "select 1",
    "select ';'",
    "select E'\\';'",
    "select 'it''s;'",
    'select ";"',
    'select ";"";"',
    "select $$;$$",
    "select $a$ $$;$$ ; $a$",
    "select $1, a$b$c",
    "/* ; /* ; */ ; */ select 2",
    "-- ;\nselect 3",
    "create rule r as on insert to t do (select 1; select 2)",
    (
        "create function f() returns int language sql"
        " begin atomic select 1; select case 1 when 1 then 2 end; end"
    ),
    "do $_x9$ begin; end $_x9$",
]


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from([";", ";\n", " ; ;;\n\n"]))
def test_statements_are_split_where_they_end_and_nowhere_else(
    pieces: list[str], separator: str
) -> None:
    text = separator.join(pieces)
    statements = split(text)
    assert [s.text for s in statements] == pieces
    lines = text.splitlines()
    for statement in statements:
        first = statement.text.split("*/ ")[-1].removeprefix("-- ;\n").split()[0]
        assert first in lines[statement.line - 1]


@pytest.mark.parametrize("text", ["", " \n ", "-- only a comment;", "/* open ;", ";;;"])
def test_text_without_a_statement_has_none(text: str) -> None:
    assert split(text) == []


@given(
    lockable=st.integers(1, 100_000),
    sessions=st.integers(1, 64),
    per_shard=st.integers(0, 500),
)
def test_chunks_that_run_side_by_side_leave_room_in_the_lock_table(
    lockable: int, sessions: int, per_shard: int
) -> None:
    size = chunks.size(lockable, sessions, per_shard)
    assert 1 <= size <= 50
    if size > 1:
        assert size * sessions * (per_shard or 40) <= lockable
