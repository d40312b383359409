"""Codes of errors, by which programs tell them apart."""

from __future__ import annotations

import pytest

from shardctl.errors import (
    Incomplete,
    Misused,
    Refused,
    ShardctlError,
    Unfinished,
    UsageError,
)
from tests import messages, reference_errors


@pytest.mark.parametrize(
    ("kind", "base", "exit_code"),
    [(Refused, ShardctlError, 1), (Misused, UsageError, 2), (Incomplete, Unfinished, 3)],
)
def test_a_refusal_has_a_code_and_the_exit_code_of_its_kind(
    kind: type[Refused], base: type[ShardctlError], exit_code: int
) -> None:
    error = kind("slot_gone", "gone", hint="make")
    assert isinstance(error, base)
    assert (error.code, error.message, error.hint) == ("slot_gone", "gone", "make")
    assert error.exit_code == exit_code


def test_the_reference_has_every_code() -> None:
    assert reference_errors.FILE.read_text(encoding="utf-8") == reference_errors.render(), (
        "docs/reference/errors.md is out of date: run `make docs`"
    )


def test_every_message_is_in_the_list_that_is_reviewed() -> None:
    assert messages.FILE.read_text(encoding="utf-8") == messages.render(), (
        "a message has changed: run `make docs`, and read the diff of tests/unit/messages.txt"
    )
