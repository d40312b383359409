"""Lines in migrations that name the shard key's column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardctl.errors import Problems
from shardctl.state import keys, migrations
from shardctl.state.keys import key_columns
from shardctl.state.migrations import Migration
from tests.fixtures.refusals import raises_code


def migration(text: str, number: int = 1) -> Migration:
    return Migration(Path(f"{number:04d}_x.sql"), number, text, "", transactional=True)


def test_lines_are_found_anywhere_and_in_every_file() -> None:
    first = "CREATE TABLE a (id int);\n-- shardctl: key a.user_id\n"
    second = "-- other\n  --shardctl:key b.owner  \r\nSELECT 1"
    assert key_columns([migration(first), migration(second, 2)]) == {"a": "user_id", "b": "owner"}


def test_names_are_folded_as_sql_does() -> None:
    text = '-- shardctl: key Photos.User_ID\n-- shardctl: key "Odd "".t"."50% Of"'
    assert key_columns([migration(text)]) == {"photos": "user_id", 'Odd ".t': "50% Of"}


def test_other_comments_mean_nothing() -> None:
    text = "-- shardctl: no-transaction\n-- shardctl: keys are good\n-- the key a.b\nSELECT '-- x'"
    assert key_columns([migration(text)]) == {}


@pytest.mark.parametrize(
    "line", ["key", "key photos", "key a.b.c", "key a.b, c.d", "key a b", 'key "a.b', "key 1.x"]
)
def test_a_malformed_line_is_refused_with_its_place(line: str) -> None:
    with raises_code(
        "key_line_invalid", match=r"0001_x\.sql:2: expected TABLE\.COLUMN, found "
    ) as refused:
        key_columns([migration(f"SELECT 1;\n-- shardctl: {line}\n")])
    assert refused.value.exit_code == 2
    assert "TABLE.COLUMN" in refused.value.hint


def test_a_tables_second_key_is_refused() -> None:
    text = "-- shardctl: key a.x\n"
    again = r"0002_x\.sql:1: the key of table a is already x"
    with raises_code("key_line_invalid", match=again):
        key_columns([migration(text), migration("-- shardctl: key a.y", 2)])


def test_a_check_may_be_asked_for_later_and_once() -> None:
    first = migration("-- shardctl: key a.x\n-- shardctl: key b.y check")
    later = migration("\n-- shardctl:  key A.x  check ", 2)
    assert key_columns([first, later]) == {"a": "x", "b": "y"}
    assert keys.checks(first) == [keys.KeyLine(2, "b", "y", check=True)]
    assert keys.checks(later) == [keys.KeyLine(2, "a", "x", check=True)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("key a.y check", "the key of table a is already x"),
        ("key a.x", "the key of table a is already x with a check"),
        ("key a.x check", "the key of table a is already x with a check"),
        ("key a.x checks", "expected TABLE.COLUMN, found 'a.x checks'"),
    ],
)
def test_a_check_of_another_column_or_a_second_one_is_refused(line: str, what: str) -> None:
    first = migration("-- shardctl: key a.x check")
    with raises_code("key_line_invalid", match=re.escape(what)):
        key_columns([first, migration(f"-- shardctl: {line}", 2)])


def test_a_key_follows_what_was_renamed_and_ends_with_its_table() -> None:
    first = migration("-- shardctl: key a.x check\n-- shardctl: key b.y")
    renamed = migration('-- shardctl: key a.z was A.x\n-- shardctl: key "C".z  was  a.z ', 2)
    dropped = migration("-- shardctl: key b.y dropped", 3)
    assert key_columns([first, renamed]) == {"C": "z", "b": "y"}
    assert key_columns([first, renamed, dropped]) == {"C": "z"}
    # The constraint has followed, so it is not asked for once more, and a new table has a new key.
    with raises_code("key_line_invalid", match="is already z with a check"):
        key_columns([first, renamed, migration('-- shardctl: key "C".z check', 3)])
    again = migration("-- shardctl: key b.other", 4)
    assert key_columns([first, dropped, again]) == {"a": "x", "b": "other"}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("a.z was a.y", "no line before it names a.y"),
        ("a.z was b.x", "no line before it names b.x"),
        ("a.y dropped", "no line before it names a.y"),
        ("c.y was a.x", "the key of table c is already z"),
        ("a.z was a", "expected TABLE.COLUMN, found"),
        ("a.z was a.x check", "expected TABLE.COLUMN, found"),
    ],
)
def test_a_rename_of_what_no_line_names_is_refused(line: str, what: str) -> None:
    first = migration("-- shardctl: key a.x\n-- shardctl: key c.z")
    with raises_code("key_line_invalid", match=re.escape(what)):
        key_columns([first, migration(f"-- shardctl: key {line}", 2)])


def test_all_malformed_lines_are_told_at_once() -> None:
    with pytest.raises(Problems) as refused:
        key_columns([migration("-- shardctl: key a\n-- shardctl: key b\n")])
    assert len(refused.value.errors) == 2


def test_the_examples_migrations_name_their_keys() -> None:
    folder = Path(__file__).parents[3] / "migrations"
    assert key_columns(migrations.read(folder)) == {"photos_by_user": "user_id", "likes": "user_id"}
