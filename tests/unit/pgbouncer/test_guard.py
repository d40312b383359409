"""What a guard refuses before it goes near its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.hosts.local import Local
from shardctl.pgbouncer import guard
from shardctl.pgbouncer.guard import Question
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cret"  # noqa: S105  # what must not be repeated


def refusal(tmp_path: Path, **given: Any) -> str:
    usual: dict[str, Any] = {
        "name": "5f3a9c1e",
        "directory": tmp_path,
        "console": "host=127.0.0.1 port=1 user=postgres dbname=pgbouncer",
        "aliases": ["one"],
        "after_s": 1.0,
    }
    with raises_code("guard_refused") as caught:
        guard.arm(Local(), **usual | given)
    assert list(tmp_path.iterdir()) == []
    assert "5f3a9c1e" in caught.value.message
    assert caught.value.hint
    assert SECRET not in f"{caught.value}{caught.value.hint}"
    return caught.value.message.partition("): ")[2]


def test_a_password_in_a_connection_string_is_refused(tmp_path: Path) -> None:
    assert "contains a password" in refusal(tmp_path, console=f"postgresql://u:{SECRET}@a/b")
    question = Question(f"host=a password={SECRET}", "SELECT true")
    assert "contains a password" in refusal(tmp_path, question=question)


def test_a_broken_string_is_refused_and_not_repeated(tmp_path: Path) -> None:
    assert "invalid connection string" in refusal(tmp_path, console=f"host=a {SECRET}")
