"""Lines in migrations that name the shard key's column."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.state import keys
from shardctl.state.keys import key_columns
from shardctl.state.migrations import Migration
from tests.fixtures.refusals import raises_code


def migration(text: str, number: int = 1) -> Migration:
    return Migration(Path(f"{number:04d}_x.sql"), number, text, "", transactional=True)


def test_names_are_folded_as_sql_does() -> None:
    text = '-- shardctl: key Photos.User_ID\n-- shardctl: key "Odd "".t"."50% Of"'
    assert key_columns([migration(text)]) == {"photos": "user_id", 'Odd ".t': "50% Of"}


@pytest.mark.parametrize(
    "line",
    ["key", "key a.b.c", 'key "a.b', "key 1.x", "key a.x checks"],
)
def test_a_malformed_line_is_refused_with_its_place(line: str) -> None:
    with raises_code(
        "key_line_invalid", match=r"0001_x\.sql:2: expected TABLE\.COLUMN, found "
    ) as refused:
        key_columns([migration(f"SELECT 1;\n-- shardctl: {line}\n")])
    assert refused.value.exit_code == 2
    assert "TABLE.COLUMN" in refused.value.hint


def test_a_later_line_replaces_the_key_of_its_table() -> None:
    first = migration("-- shardctl: key a.x\n-- shardctl: key b.y check")
    later = migration("\n-- shardctl:  key A.z  check ", 2)
    assert key_columns([first, later]) == {"a": "z", "b": "y"}
    assert keys.checks(first) == [keys.KeyLine(2, "b", "y", check=True)]
    assert keys.checks(later) == [keys.KeyLine(2, "a", "z", check=True)]
