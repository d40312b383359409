"""Codes of errors, by which programs tell them apart."""

from __future__ import annotations

import pytest

from shardctl.cli.output import errors_json
from shardctl.errors import (
    Incomplete,
    Misused,
    Problems,
    Refused,
    ShardctlError,
    Unfinished,
    UsageError,
    named,
)
from shardctl.postgres.connection import NodeUnavailable
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


def test_a_class_has_its_name_as_its_code() -> None:
    assert NodeUnavailable("a", "127.0.0.1:1", "refused").code == "node_unavailable"
    assert UsageError("x").code == "usage_error"


def test_json_gives_the_code_of_every_error() -> None:
    errors = Problems([Refused("a_b", "x", hint="y"), UsageError("z")])
    assert errors_json(errors)["errors"] == [
        {"code": "a_b", "message": "x", "hint": "y"},
        {"code": "usage_error", "message": "z", "hint": ""},
    ]


def test_an_error_is_named_once_and_keeps_its_codes() -> None:
    error = Incomplete("a_b", "broke", hint="y")
    told = named("node a", error)
    assert (told.message, told.hint) == ("node a: broke", "y")
    assert (told.code, told.exit_code) == ("a_b", 3)
    assert named("node a", told) is told
    assert named("node ab", told).message == "node ab: node a: broke"


def test_the_reference_has_every_code() -> None:
    assert reference_errors.FILE.read_text(encoding="utf-8") == reference_errors.render(), (
        "docs/reference/errors.md is out of date: run `make docs`"
    )


def test_every_message_is_in_the_list_that_is_reviewed() -> None:
    assert messages.FILE.read_text(encoding="utf-8") == messages.render(), (
        "a message has changed: run `make docs`, and read the diff of tests/unit/messages.txt"
    )
