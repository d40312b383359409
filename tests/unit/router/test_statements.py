"""Statements: names quoted, values bound, and nothing from outside in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from shardctl.router import merging, statements
from shardctl.router.errors import NameRefused
from shardctl.router.merging import Gathering

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def select(schema: str, *given: Any) -> str:
    return statements.of_shard(statements.select(*given), schema).decode()


def test_a_select_has_order_and_limit() -> None:
    order = statements.orders(["-made", "caption"])
    found = select("shard1", "photos", ("id", "user_id"), "user_id = %s", order, 30)
    assert found == (
        'SELECT "id", "user_id" FROM "shard1"."photos" WHERE user_id = %s'
        ' ORDER BY "made" DESC, "caption" LIMIT 30'
    )


@given(names, names, names)
def test_names_from_outside_stay_names(schema: str, table: str, field: str) -> None:
    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    assert select(schema, table, (field,), None) == (
        f"SELECT {quoted(field)} FROM {quoted(schema)}.{quoted(table)}"
    )
    inserted = statements.of_shard(statements.insert(table, (field,), ("id",)), schema)
    assert inserted.decode() == (
        f'INSERT INTO {quoted(schema)}.{quoted(table)} ({quoted(field)}) VALUES (%s) RETURNING "id"'
    )


@pytest.mark.parametrize("name", ["", "a\0b", None, 5, ["id"]])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(NameRefused, match="not a table or field name"):
        statements.select("photos", statements.terms([name]), None)  # type: ignore[list-item]
    with pytest.raises(NameRefused):
        statements.delete.__wrapped__(name, "true")


def test_expressions_are_the_applications_own() -> None:
    fields = statements.terms([sql.SQL("count(*)"), "id"])
    assert select("s", "t", fields, None) == 'SELECT count(*), "id" FROM "s"."t"'
    assert statements.terms("id") == ("id",)


@pytest.mark.parametrize("limit", ["1; DROP TABLE photos", 1.5, "1"])
def test_a_limit_is_a_number(limit: object) -> None:
    with pytest.raises(TypeError):
        statements.number(limit)  # type: ignore[arg-type]


def test_a_row_without_values_takes_its_defaults() -> None:
    assert statements.insert("t", (), ()) == b'INSERT INTO \0."t" DEFAULT VALUES'


def test_values_to_set_come_before_those_of_the_condition_or_have_names() -> None:
    found = statements.update("t", ("a", "b"), "id = %s", False)
    assert found == b'UPDATE \0."t" SET "a" = %s, "b" = %s WHERE id = %s'
    found = statements.update("t", ("a",), "id = %(id)s", True)
    assert found == b'UPDATE \0."t" SET "a" = %(value 0)s WHERE id = %(id)s'


def test_a_percent_sign_is_one_where_there_are_no_parameters() -> None:
    assert statements.condition("caption LIKE 'a%'", None) == "caption LIKE 'a%%'"
    assert statements.condition("caption LIKE 'a%%'", ()) == "caption LIKE 'a%%'"
    assert statements.condition(sql.SQL("{} > 5").format(sql.Identifier("n")), None) == '"n" > 5'


def test_nothing_of_the_applications_can_stand_for_the_schema() -> None:
    with pytest.raises(ValueError, match="NUL"):
        statements.condition("a = '\0'", None)
    with pytest.raises(ValueError, match="NUL"):
        statements.terms([sql.SQL("\0")])
    with pytest.raises(NameRefused):
        statements.orders("\0")


def test_a_limit_stands_in_every_sub_select_and_after_them() -> None:
    asked = Gathering("photos", ("id",), "user_id = %(0)s", statements.orders(["-made", "id"]), 30)
    one = (
        '(SELECT "id", "made" FROM "shard{}"."photos" WHERE user_id = %(0)s'
        ' ORDER BY "made" DESC, "id" LIMIT 30)'
    )
    assert merging.gather(["shard1", "shard4"], asked).decode().split("\n") == [
        one.format(1),
        "UNION ALL " + one.format(4),
        "ORDER BY 2 DESC, 1 LIMIT 30",
    ]
    assert asked.keys == (1, 0)
    assert f"({merging.gather(['shard1'], asked).decode()})" == one.format(1)


def test_rows_of_keys_are_of_an_array_for_each_shard() -> None:
    asked = Gathering("photos", ("id",), "a = 1 OR b = 2", statements.orders("-made"), 30)
    found = merging.select_keys(["s1", "s4"], asked, "user_id", None, texts=False).decode()
    one = (
        '(SELECT "id", "made" FROM "s{}"."photos" WHERE "user_id" = ANY (%(keys {})s)'
        ' AND (a = 1 OR b = 2) ORDER BY "made" DESC LIMIT 30)'
    )
    assert found.split("\n") == [
        one.format(1, 0), "UNION ALL " + one.format(4, 1), "ORDER BY 2 DESC LIMIT 30"
    ]  # fmt: skip
    assert merging.select_keys(["s1"], asked, "user_id", 5, texts=True).decode() == (
        'SELECT "shardctl rows".* FROM pg_catalog.unnest(%(keys 0)s::text[])'
        ' AS "shardctl keys" ("key")'
        ' CROSS JOIN LATERAL (SELECT "id", "made" FROM "s1"."photos"'
        ' WHERE "user_id" = "shardctl keys"."key" AND (a = 1 OR b = 2) ORDER BY "made" DESC'
        ' LIMIT 5) AS "shardctl rows" ORDER BY 2 DESC LIMIT 30'
    )


def test_rows_are_inserted_together_but_with_no_more_parameters_than_there_can_be() -> None:
    ((statement, values),) = statements.insert_rows(
        "s", "t%", ("a", 'b"'), [(1, 2), (3, 4)], "DO NOTHING"
    )
    assert statement == (
        b'INSERT INTO "s"."t%%" ("a", "b""") VALUES (%s, %s), (%s, %s) ON CONFLICT DO NOTHING'
    )
    assert values == [1, 2, 3, 4]
    many = [(number,) for number in range(65_536)]
    counts = [len(given) for _, given in statements.insert_rows("s", "t", ("a",), many, None)]
    assert counts == [65_535, 1]


def test_positional_parameters_are_bound_once_for_all_shards() -> None:
    text, named = merging.bound("a = %s AND b = ANY(%s) AND c LIKE '%%s'", [1, [2]])
    assert text == "a = %(0)s AND b = ANY(%(1)s) AND c LIKE '%%s'"
    assert named == {"0": 1, "1": [2]}
    assert merging.bound("a = %(x)s", {"x": 1}) == ("a = %(x)s", {"x": 1})
    with pytest.raises(ValueError, match="2 placeholders but 1 values"):
        merging.bound("a = %s AND b = %s", [1])


def test_the_path_to_a_shard_is_its_schema_alone() -> None:
    assert statements.begin("sh%d") == b'BEGIN; SET LOCAL search_path TO "sh%d"'
