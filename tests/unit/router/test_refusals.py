"""What a pooler refuses: exactly its own words, and for as long as patience lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg import errors
from psycopg.pq import DiagnosticField

from shardctl.router import PoolSettings
from shardctl.router.errors import FENCED_WITHIN, is_of, is_refusal
from shardctl.router.places import Known
from shardctl.router.threads.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = "server login has been failing, try again later (server_login_retry)"
NEW = "server login has been failing, cached error: connect failed (server_login_retry)"
CUT_OFF = "server login has been failing, cached error: connection to 10.0.0.7:5432 refused, and"


def told(text: str, severity: str = "FATAL") -> errors.ProtocolViolation:
    fields: dict[int, bytes | None] = {
        DiagnosticField.SEVERITY: severity.encode(),
        DiagnosticField.MESSAGE_PRIMARY: text.encode(),
    }
    return errors.ProtocolViolation(text, info=fields)


@pytest.mark.parametrize("text", [OLD, NEW, CUT_OFF])
def test_a_poolers_own_words_are_a_refusal(text: str) -> None:
    assert is_refusal(told(text))
    assert not is_refusal(told(text, "ERROR"))  # what a function raises


class Pooler:
    """Refuses what begins a transaction until its errors are used up."""

    def __init__(self, *refused: Exception) -> None:
        self.waited: list[float | None] = []
        """How long each attempt might have waited for a connection."""
        self._refused: Iterator[Exception] = iter(refused)

    def run(self, patience_s: float, until: float | None = None) -> str:
        return Nodes(Known(patience_s), PoolSettings()).outwaited(self._attempt, until)

    def _attempt(self, seconds: float | None) -> str:
        self.waited.append(seconds)
        for error in self._refused:
            raise error
        return "served"


def test_another_error_is_raised_at_once() -> None:
    pooler = Pooler(told(OLD), told("pause mode"), told(OLD))
    with pytest.raises(errors.ProtocolViolation):
        pooler.run(60)
    assert len(pooler.waited) == 2


def test_the_fences_error_is_recognised_in_what_others_made_of_it() -> None:
    wrapped = RuntimeError("as an ORM says it")
    wrapped.__cause__ = errors.InvalidSchemaName()
    fenced = FENCED_WITHIN
    assert is_of(wrapped, fenced)
    assert is_of(errors.UndefinedFunction(), fenced)
    wrapped.__cause__ = errors.DivisionByZero()
    assert not is_of(wrapped, fenced)
    assert not is_of(None, fenced)
