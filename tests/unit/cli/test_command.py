"""Options before and after the command, and how bad usage is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import reference
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
        ("topology", "--topology", "FILE", "check", "-o", "json"),
        ("topology", "check", "--topology", "FILE", "-o", "json"),
        ("topology", "check", "-ojson", "--topology=FILE"),
        ("topology", "check", "-o", "json", "--topology", "none", "--topology", "FILE"),
        ("--topology", "none", "topology", "check", "--topology", "FILE", "--output", "json"),
    ],
    ids=" ".join,
)
def test_global_options_stand_before_and_after(arguments: tuple[str, ...], file: Path) -> None:
    done = here(*(word.replace("FILE", str(file)) for word in arguments))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


def test_the_option_counts_more_than_the_environment_wherever_it_stands(file: Path) -> None:
    for words in (["--topology", str(file), "topology", "check"],
                  ["topology", "check", "--topology", str(file)]):  # fmt: skip
        assert here(*words, SHARDCTL_TOPOLOGY="none").returncode == 0
    assert here("topology", "check", SHARDCTL_TOPOLOGY=str(file)).returncode == 0


def test_verbose_shows_the_log_from_behind_the_command(file: Path) -> None:
    assert "INFO shardctl" in here("topology", "check", "--topology", str(file), "--verbose").stderr


def test_what_looks_like_an_option_behind_two_dashes_is_none(file: Path) -> None:
    done = here("--topology", str(file), "route", "--offline", "--", "--verbose")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-4:] != []
    assert "--verbose" in done.stdout


@pytest.mark.parametrize("option", ["--yes", "-y", "-ojson"])
def test_an_option_of_commands_before_the_command_is_bad_usage(option: str) -> None:
    done = here(option, "encode-id", *TIME)
    assert done.returncode == 2
    assert option.lstrip("-")[0] in done.stderr
    assert done.stdout.startswith("{") == (option == "-ojson")


def test_a_group_with_output_of_its_own_does_not_take_that_of_its_command(file: Path) -> None:
    words = ("--topology", str(file), "hosts", "-o", "json")
    assert json.loads(here(*words).stdout)["hosts"]
    assert here(*words, "check").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("encode-id", "--tim", "x"), "--tim", "--time"),
        (("encode-id",), "'--time'", "`shardctl encode-id --help`"),
        (("decode-di",), "Did you mean 'decode-id'", "`shardctl --help`"),
        (("moves", "lst"), "Did you mean 'list'", "`shardctl moves --help`"),
        (("xyzzy",), "no such command 'xyzzy'", "run `shardctl --help` for its commands"),
        (("hosts", "test"), "no such command 'test'", "for its commands: check"),
        (("verify", "b"), "(b)", "`shardctl verify --help`"),
        (("verify", "-o", "tsv"), "'tsv'", "`shardctl verify --help`"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_bad_usage_is_a_line_and_a_hint(
    arguments: tuple[str, ...], message: str, hint: str
) -> None:
    """Of what typer finds, the line is in its words, with what was typed."""
    done = here(*arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("shardctl: ")
    assert message in first
    assert hint in second


def test_without_a_command_there_is_the_help() -> None:
    for words in ((), ("moves",), ("--help",), ("-h",), ("moves", "-h")):
        done = here(*words)
        assert "Usage: shardctl" in done.stdout, words
        assert done.returncode == (0 if words and words[-1].startswith("-") else 2)


@pytest.mark.parametrize(
    "arguments",
    [entry.name.split()[1:] for entry in reference.entries() if entry.takes("--output")],
    ids=" ".join,
)
def test_an_error_is_json_with_every_command(arguments: list[str], tmp_path: Path) -> None:
    """No topology is there, and required options are missing: errors of both kinds."""
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
    assert error["message"].startswith("bug: ZeroDivisionError")
    assert "with the traceback in" in error["hint"]


def test_one_object_and_no_other_is_printed_with_a_result(file: Path) -> None:
    """What is no id is told on standard error alone, as json.md says."""
    done = here("--topology", str(file), "decode-id", "x", "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "--detailed-exitcode"),
        ("migrate", "--dry-run", "--detailed-exitcode", "--nope"),
        ("migrate", "--dry-run", "--detailed-exitcode", "--topology", "none"),
        ("mgirate", "--dry-run", "--detailed-exitcode"),
    ],
    ids=" ".join,
)
def test_with_a_detailed_exit_code_bad_usage_is_1(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert done.returncode == 1
    assert done.stderr
