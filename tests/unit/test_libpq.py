"""Why a login failed, as libpq and a server write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl import libpq
from shardctl.postgres.connection import NodeUnavailable
from tests.fixtures.servers.postgres import local_node

if TYPE_CHECKING:
    from pathlib import Path

AT = 'connection to server at "127.0.0.1", port 5432 failed: '
REFUSED = f"{AT}Connection refused\n\tIs the server running on that host?"


@pytest.mark.parametrize(
    ("text", "answered", "reason"),
    [
        (f"connection failed: {REFUSED}", False, "Connection refused"),
        (f'{REFUSED}\n{AT}ВАЖНО:  роль "x" не существует', True, 'роль "x" не существует'),
        ("connection failed: FATAL:  no such user: x", True, "no such user: x"),
        (f"{AT}fe_sendauth: no password supplied", False, "fe_sendauth: no password supplied"),
        ("", False, "OperationalError"),
    ],
)
def test_what_a_server_says_is_known_in_every_language(
    text: str, answered: bool, reason: str
) -> None:
    error = psycopg.OperationalError(text)
    assert (libpq.answered(error), libpq.reason_of(error)) == (answered, reason)


def test_a_server_that_refuses_a_question_is_not_taken_for_lost(tmp_path: Path) -> None:
    node = local_node(tmp_path, "a", 5432, range(2))
    for cause, answered in (
        (psycopg.errors.InsufficientPrivilege("permission denied for schema shardctl"), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), False),
    ):
        with pytest.raises(NodeUnavailable) as caught:
            raise NodeUnavailable(node, cause) from cause
        assert caught.value.answered is answered
        assert ("database.user" in caught.value.hint) is answered
