"""What PgBouncer would read in a configuration; a real one is asked in tests/integration."""

from __future__ import annotations

import pytest

from shardctl.pgbouncer import ini
from shardctl.pgbouncer.ini import Include, Setting


def read(text: str, section: str = "") -> list[Include | Setting]:
    return list(ini.read(text, section))


def test_every_kind_of_line_is_told_with_its_number_and_section() -> None:
    text = (
        "; shards = none\n"
        "%include first.ini\n"
        "[databases]\n"
        "\n"
        "  shard0 =  host=a port=1  \n"
        "# shard1 = host=b\n"
        "%include\t other one.ini \r\n"
        "[pgbouncer]\n"
        "listen_port=6432\n"
    )
    assert read(text) == [
        Include(2, "first.ini", ""),
        Setting(5, "databases", "shard0", "host=a port=1"),
        Include(7, "other one.ini", "databases"),
        Setting(9, "pgbouncer", "listen_port", "6432"),
    ]


def test_an_included_file_begins_in_the_section_that_names_it() -> None:
    assert read("shard0 = host=a", "databases") == [
        Setting(1, "databases", "shard0", "host=a"),
    ]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=", "a", ""),
        ("a\t=\tb c", "a", "b c"),
        ("a = 'b'", "a", "'b'"),
        ("a = b ; no comment", "a", "b ; no comment"),
        ("a = b = c", "a", "b = c"),
        ("A_b.c-1 = d", "A_b.c-1", "d"),
        ("* = host=a", "*", "host=a"),
        ("'ä b;c' = host=a", "ä b;c", "host=a"),
        ("\v\fa = b\v", "a", "b"),
        ("a = b\rc", "a", "b\rc"),
        ("a = \xa0b\xa0", "a", "\xa0b\xa0"),
    ],
)
def test_a_key_and_its_value_are_parted_as_pgbouncer_does(line: str, key: str, value: str) -> None:
    assert read(line) == [Setting(1, "", key, value)]


@pytest.mark.parametrize(
    "line",
    ["a", "a b = c", "= b", "'a = b", "'' = b", '"a" = b', "ä = b", "\xa0a = b", "[a",
     "%includea b", "%include", ";a = b", "  #a = b", "% include a"],
)  # fmt: skip
def test_what_is_no_line_of_the_grammar_is_left_out(line: str) -> None:
    assert read(line) == []


def test_what_follows_a_section_on_its_line_counts() -> None:
    assert read("[users][databases] a = b\n[x]%include c\nd = e") == [
        Setting(1, "databases", "a", "b"),
        Include(2, "c", "x"),
        Setting(3, "x", "d", "e"),
    ]


def test_a_commented_section_changes_nothing() -> None:
    assert read("[a]\n;[b]\n#[c]\nd = e") == [Setting(4, "a", "d", "e")]
