"""Errors that the documentation allows, and those that it does not."""

from __future__ import annotations

import psycopg
import pytest

from tests.soak.clients import outcome_of
from tests.soak.history import Op, Outcome
from tests.soak.windows import FENCE, OUTSIDE, Window, classify, outside


def failed(at: float = 5.0, shard: int = 2, code: str = "42P01", by: str = "p1") -> Op:
    return Op("one", "write", shard, at, at + 0.1, "refused", code=code, by=by)


@pytest.mark.parametrize(
    ("op", "allowed"),
    [
        (failed(), True),
        (failed(at=3.95), True),  # its end is within
        (failed(at=6.1), False),
        (failed(at=3.5), False),
        (failed(shard=3), False),
        (failed(code="57P01"), False),
        (failed(by="direct"), False),
    ],
)
def test_a_window_allows_some_errors_of_some_clients_for_some_time(op: Op, allowed: bool) -> None:
    window = Window("a fence", 4, 6, frozenset({2}), frozenset({"p1"}), FENCE)
    assert (outside([op], [window]) == []) is allowed
    assert classify([op], [window]) == {("a fence" if allowed else OUTSIDE, op.code, op.by): 1}


def test_a_window_without_bounds_allows_everything_from_its_begin() -> None:
    window = Window("a server was killed", 4)
    assert outside([failed(at=1000, shard=9, code="08006", by="direct")], [window]) == []
    assert outside([failed(at=1)], [window]) == [failed(at=1)]


def test_an_acknowledged_operation_is_no_error() -> None:
    done = Op("one", "write", 2, 1, 2, "acknowledged")
    assert (outside([done], []), classify([done], [])) == ([], {})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (psycopg.errors.UndefinedTable("relation does not exist"), "refused"),
        (psycopg.errors.ReadOnlySqlTransaction("refused"), "refused"),
        (psycopg.errors.AdminShutdown("terminating connection"), "unknown"),
        (psycopg.errors.ProtocolViolation("server login has been failing"), "refused"),
        (psycopg.errors.ProtocolViolation("server conn crashed?"), "unknown"),
        (psycopg.OperationalError("connection failed: refused"), "refused"),
        (psycopg.OperationalError("server closed the connection unexpectedly"), "unknown"),
    ],
)
def test_an_answer_that_was_lost_says_nothing(error: psycopg.Error, outcome: Outcome) -> None:
    assert outcome_of(error) == outcome
