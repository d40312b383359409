"""Options before and after the command, and how bad usage is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import here

if TYPE_CHECKING:
    from pathlib import Path

TIME = ("--time", "2020-01-01")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "photos.yaml"
    done = here("--topology", str(file), "sandbox", "new", "--shards", "8", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topology", "FILE", "topology", "check", "-o", "json"),
        ("topology", "check", "-ojson", "--topology=FILE"),
        ("--topology", "none", "topology", "check", "--topology", "FILE", "--output", "json"),
    ],
    ids=" ".join,
)
def test_global_options_stand_before_and_after(arguments: tuple[str, ...], file: Path) -> None:
    done = here(*(word.replace("FILE", str(file)) for word in arguments))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("encode-id", "--tim", "x"), ("--tim", "--time")),
        (("decode-di",), ("decode-id", "--help")),
        (("verify", "b"), ("b", "--help")),
        (("verify", "-o", "tsv"), ("tsv", "--help")),
    ],
    ids=" ".join,
)
def test_bad_usage_is_a_line_and_a_hint(arguments: tuple[str, ...], named: tuple[str, str]) -> None:
    """Of what typer finds, the line is in its words, with what was typed."""
    done = here(*arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("shardctl: ")
    assert [word in line for word, line in zip(named, (first, second), strict=True)] == [True, True]


@pytest.mark.parametrize("command", ["verify", "moves list", "encode-id", "sandbox up"])
def test_an_error_is_json(command: str, tmp_path: Path) -> None:
    """No topology is there, and required options are missing: errors of both kinds."""
    arguments = command.split()
    done = here("--topology", str(tmp_path / "none"), *arguments, "-o", "json")
    told = json.loads(done.stdout)
    assert told["format"] == 1
    assert told["errors"]
    for error in told["errors"]:
        assert error["message"] in done.stderr
        assert error["hint"] in done.stderr
    assert done.returncode == 2


def test_a_bug_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.ids.times.parse", lambda _: 1 // 0)
    done = here("encode-id", *TIME, "-o", "json")
    assert done.returncode == 70
    [error] = json.loads(done.stdout)["errors"]
    assert error["code"] == "bug"
    assert "ZeroDivisionError" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "--detailed-exitcode"),
        ("migrate", "--dry-run", "--detailed-exitcode", "--topology", "none"),
        ("mgirate", "--dry-run", "--detailed-exitcode"),
    ],
    ids=" ".join,
)
def test_with_a_detailed_exit_code_bad_usage_is_1(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert done.returncode == 1
    assert done.stderr
