"""What may be tried again, as far as errors tell it by themselves."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from shardctl.router import refusals
from shardctl.router.known import Known
from shardctl.router.running import Attempts, settle
from shardctl.topology.model import ShardId


def outcome(plan: Any) -> Any:
    """Give what a plan returns that has nothing to wait for."""
    with pytest.raises(StopIteration) as told:
        next(plan)
    return told.value.value


class Psycopg2Error(Exception):
    pgcode = "23505"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of the application"),
        Psycopg2Error(),
        Exception({"S": "ERROR", "C": "22012", "M": "division by zero"}),
        errors.UniqueViolation(),
        errors.ProtocolViolation("of another kind"),
        psycopg.OperationalError("the connection is lost"),
        ExceptionGroup("of tasks", [errors.DivisionByZero()]),
    ],
)
def test_an_error_that_is_not_the_fences_is_settled_without_a_question(error: Exception) -> None:
    assert outcome(settle(Known(1.0), ShardId(1), error, None)) is False


@pytest.mark.parametrize(
    "error",
    [
        errors.UndefinedTable(),
        type("AsyncpgError", (Exception,), {"sqlstate": "42P01"})(),
        type("Psycopg2Error", (Exception,), {"pgcode": "3F000"})(),
        type("SqlAlchemyError", (Exception,), {"orig": errors.InsufficientPrivilege()})(),
        Exception({"S": "ERROR", "C": "42P01"}),
        ExceptionGroup("of tasks", [ValueError(), errors.UndefinedFunction()]),
    ],
)
def test_an_error_that_can_be_the_fences_is_looked_at(error: Exception) -> None:
    from shardctl.router.errors import NotOpen

    with pytest.raises(NotOpen):  # it would ask the node of the shard
        next(settle(Known(1.0), ShardId(1), error, None))


def test_nothing_is_tried_again_without_a_connection() -> None:
    trying = Attempts(Known(1.0), ShardId(1), 3)
    assert outcome(trying.after(ValueError(), None)) is False
    lost = Attempts(Known(1.0), ShardId(1), 2)
    plan = lost.after(psycopg.OperationalError("lost in BEGIN"), None)
    next(plan)
    assert outcome(plan) is True
    assert outcome(lost.after(psycopg.OperationalError("lost in BEGIN"), None)) is False


def test_an_error_of_the_connection_is_no_answer_of_the_server() -> None:
    assert refusals.is_lost(psycopg.OperationalError("server closed the connection"))
    assert not refusals.is_lost(errors.UniqueViolation())
    assert not refusals.is_lost(ValueError())
