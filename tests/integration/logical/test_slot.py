"""The slot of a stream: what keeps it from being made is named, and a cancel leaves none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.postgres import slots
from shardctl.postgres.logical import slot
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.streams import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.streams import Streamed

WRITE = "INSERT INTO shardctl.event (who, command, result) VALUES ('a', 'b', 'c')"


@pytest.fixture
def writer(streamed: Streamed) -> Iterator[Connection]:
    """Give a session in a transaction that has written."""
    session = streamed.client(0, autocommit=False, application_name="bulk load")
    session.execute(WRITE)
    yield session
    session.rollback()


def test_an_open_transaction_is_reported_and_a_stop_leaves_no_slot(
    streamed: Streamed, writer: Connection
) -> None:
    seen: list[Holder] = []

    def report(blocker: Holder) -> None:
        seen.append(blocker)
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        slot.make(streamed.route, NAME, watch=streamed.source, lock_timeout_s=60, report=report),
    ):
        pass
    (blocker,) = seen
    assert blocker.pid == writer.info.backend_pid
    assert "bulk load" in str(blocker)
    assert blocker.since is not None
    assert streamed.source.execute("SELECT FROM pg_replication_slots").fetchall() == []


def test_the_wait_is_bounded_and_a_prepared_transaction_is_named(
    streamed: Streamed, writer: Connection
) -> None:
    writer.execute("PREPARE TRANSACTION 'forgotten'")
    writer.rollback()
    with (
        raises_code("slot_blocked", match="forgotten"),
        slot.make(streamed.route, NAME, watch=streamed.source, lock_timeout_s=0.6),
    ):
        pass
    assert not slots.keeps(streamed.source, NAME)


def test_a_slot_that_is_lost_says_why(streamed: Streamed) -> None:
    settings = [("max_slot_wal_keep_size", "1MB")]
    settings += [("idle_replication_slot_timeout", "1s")] * (streamed.major > 17)
    for setting, value in settings:
        with slot.make(streamed.route, NAME, watch=streamed.source, lock_timeout_s=20):
            slots.require(streamed.source, "a", NAME)
        try:
            set_to(streamed, f"ALTER SYSTEM SET {setting} = '{value}'")
            wait_for(lambda: is_lost(streamed))
            with raises_code("slot_gone", match=setting):
                slots.require(streamed.source, "a", NAME)
        finally:
            set_to(streamed, f"ALTER SYSTEM RESET {setting}")
        assert slots.drop(streamed.source, NAME)
        with raises_code("slot_gone"):
            slots.require(streamed.source, "a", NAME)


def is_lost(streamed: Streamed) -> bool:
    """Write WAL and end it, and tell whether the slot has survived that."""
    streamed.source.execute("SELECT pg_switch_wal(), txid_current()")
    streamed.source.execute("CHECKPOINT")
    return not slots.keeps(streamed.source, NAME)


def set_to(streamed: Streamed, statement: str) -> None:
    streamed.source.execute(statement.encode())
    streamed.source.execute("SELECT pg_reload_conf()")
