"""Statements: names quoted, values bound, and nothing from outside in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from shardctl.router import statements
from shardctl.router.errors import NameRefused

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def select(schema: str, *given: Any) -> str:
    return statements.of_shard(statements.select(*given), schema).decode()


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
    with pytest.raises(NameRefused):
        statements.select("photos", statements.terms([name]), None)  # type: ignore[list-item]
    with pytest.raises(NameRefused):
        statements.delete.__wrapped__(name, "true")


@pytest.mark.parametrize("limit", ["1; DROP TABLE photos", 1.5, "1"])
def test_a_limit_is_a_number(limit: object) -> None:
    with pytest.raises(TypeError):
        statements.number(limit)  # type: ignore[arg-type]


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
