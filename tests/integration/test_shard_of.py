"""`shardctl.shard_of` gives the shard that Python and the router give, for every kind of key."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import errors, sql

from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.topology import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.fixtures.servers.postgres import PgServer, StartServer

    Connection = psycopg.Connection[Any]

SHARD_COUNT = 2000
INTEGERS = {"smallint": 15, "integer": 31, "bigint": 63}
many = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
"""PostgreSQL's text has neither lone surrogates nor zero bytes."""


@contextlib.contextmanager
def connected(server: PgServer, encoding: str = "UTF8") -> Iterator[Connection]:
    """Give a session of a database that has the function."""
    made = "CREATE DATABASE shard_of ENCODING '{}' LOCALE 'C' TEMPLATE template0"
    with server.connect() as admin:
        admin.execute(made.format(encoding).encode())
        try:
            with server.connect("shard_of") as session:
                session.execute("CREATE SCHEMA shardctl")
                session.execute(generator.render(Layout(), "strict", SHARD_COUNT).encode())
                yield session
        finally:
            admin.execute("DROP DATABASE shard_of WITH (FORCE)")


@pytest.fixture
def session(two_servers: dict[str, PgServer]) -> Iterator[Connection]:
    with connected(two_servers["a"]) as opened:
        yield opened


def in_sql(session: Connection, values: list[Any], type_: str) -> list[int]:
    """Ask the server for the shards of values of a type, however the caller's path is set."""
    query = sql.SQL(
        "SELECT shardctl.shard_of(key) FROM unnest(%s::{}[]) WITH ORDINALITY AS u (key, place)"
        " ORDER BY place"
    ).format(sql.SQL(type_))
    return [shard for (shard,) in session.execute(query, (values,))]


def agree(session: Connection, type_: str, values: list[keys.Key]) -> None:
    given_ = [Decimal(v) if isinstance(v, int) and type_ == "numeric" else v for v in values]
    assert in_sql(session, given_, type_) == [keys.shard_of(v, SHARD_COUNT) for v in values]


@pytest.mark.parametrize("type_", INTEGERS)
def test_integers(session: Connection, type_: str) -> None:
    bits = INTEGERS[type_]
    lowest, highest = -(1 << bits), (1 << bits) - 1

    @many
    @given(st.lists(st.integers(lowest, highest), min_size=1))
    @example([lowest, highest, 0, -1, 1, -SHARD_COUNT, SHARD_COUNT])
    def check(values: list[keys.Key]) -> None:
        agree(session, type_, values)

    check()


@pytest.mark.parametrize("type_", ["text", "varchar"])
def test_texts(session: Connection, type_: str) -> None:
    @many
    @given(st.lists(texts, min_size=1))
    @example(["", " ann ", "ann", "Zoë", "'; --", "31341", "\\"])
    def check(values: list[keys.Key]) -> None:
        agree(session, type_, values)

    check()


@pytest.mark.parametrize(
    "major", [15, *(pytest.param(m, marks=pytest.mark.embedded) for m in (16, 18))]
)
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_versions_and_encodings_agree(pg_server: StartServer, major: int, encoding: str) -> None:
    with connected(pg_server(major=major), encoding) as session:
        agree(session, "text", ["ann", "Zoë", "", "ÿ"])
        agree(session, "bigint", [-1, 31341, -(1 << 63)])
        agree(session, "numeric", [1 << 90, -(1 << 90)])
        agree(session, "uuid", [UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff")])


def test_what_is_no_key_is_an_error_and_has_no_shard(session: Connection) -> None:
    for what in ("1.5", "'NaN'::numeric", "'Infinity'::numeric"):
        with pytest.raises((errors.InvalidTextRepresentation, errors.FeatureNotSupported)):
            session.execute(f"SELECT shardctl.shard_of({what})".encode())
    for what in ("true", "1.5::float8", "now()", "'\\x00'::bytea"):
        with pytest.raises(errors.UndefinedFunction):
            session.execute(f"SELECT shardctl.shard_of({what})".encode())


def test_no_key_has_no_shard_and_a_literal_is_text(session: Connection) -> None:
    for type_ in (*INTEGERS, "numeric", "text", "uuid"):
        assert in_sql(session, [None], type_) == [None]
    row = session.execute("SELECT shardctl.shard_of('ann'), shardctl.shard_of(31341)").fetchone()
    assert row == (866, 1341)
