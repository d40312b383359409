"""The one line that a monitoring system reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.findings import Finding, Severity
from shardctl.checks.verify import Report
from shardctl.cli import nagios
from shardctl.errors import ShardctlError
from tests.fixtures.commands import here

if TYPE_CHECKING:
    from pathlib import Path

DATA = r"\w+=[\d.]+(s|B)?;[\d.]*;[\d.]*;[\d.]*"


def report(*severities: Severity, actual: str = "absent", cluster: str = "photos") -> Report:
    findings = tuple(
        Finding("map", "x", one, actual=actual, expected="one", hint="fix") for one in severities
    )
    return Report(cluster, ("map",), findings, nodes=2, shards=8, poolers=1, elapsed_ms=412)


@pytest.mark.parametrize(
    ("severities", "strict", "state"),
    [
        ((), False, "OK"),
        ((Severity.note,), True, "OK"),
        ((Severity.warning, Severity.note), False, "WARNING"),
        ((Severity.warning,), True, "CRITICAL"),
        ((Severity.warning, Severity.error), False, "CRITICAL"),
    ],
)
def test_the_state_is_that_of_the_gravest_finding(
    severities: tuple[Severity, ...], strict: bool, state: str
) -> None:
    found, line = nagios.of(report(*severities), strict=strict)
    assert found.name == state
    assert line.startswith(f"SHARDCTL {state} - cluster photos: ")


def test_the_line_has_text_and_performance_data() -> None:
    _, line = nagios.of(report())
    assert line == (
        "SHARDCTL OK - cluster photos: 8 shards on 2 nodes and 1 pooler verified | errors=0;;0;0"
        " warnings=0;0;;0 notes=0;;;0 nodes=2;;;0 shards=8;;;0 poolers=1;;;0 time=0.412s;;;0"
    )
    _, line = nagios.of(report(Severity.warning, Severity.error, Severity.error))
    assert "2 errors, 1 warning: map: fleet: expected one, found absent | errors=2;;0;0" in line


@pytest.mark.parametrize("text", ["a | b=1", "a\nb\r\nc", "x" * 5000, "\u2028|", ""])
def test_no_name_makes_it_two_lines_or_other_data(text: str) -> None:
    _, line = nagios.of(report(Severity.error, actual=text, cluster=text))
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    _, _, data = line.partition(" | ")
    assert re.fullmatch(rf"({DATA} ?)+", data)
    assert "|" not in data


def test_an_error_is_one_line_with_its_hint() -> None:
    errors = [ShardctlError("a\nb", hint="do c"), ShardctlError("d")]
    assert nagios.unknown(errors) == "SHARDCTL UNKNOWN - a b; and 1 problem more (do c)"


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "--nagios", "--topology", "/nowhere.yaml"),
        ("verify", "--nagios", "--check", "nope"),
        ("verify", "--nagios", "--nope"),
        ("verify", "--nagios", "-o", "json"),
        ("-o", "json", "verify", "--nagios"),
        ("verify", "--list", "--nagios"),
        ("verify", "--nagios", "--log-format", "json", "--topology", "/nowhere.yaml"),
    ],
)
def test_what_cannot_be_examined_is_unknown(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = here(*arguments, XDG_STATE_HOME=str(tmp_path), SHARDCTL_TOPOLOGY="topology.yaml")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("SHARDCTL UNKNOWN - ")
    assert done.stdout.count("\n") == 1


def test_a_bug_is_unknown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.topology.loader.load", lambda _: 1 // 0)
    done = here("verify", "--nagios", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 3
    assert done.stdout.startswith("SHARDCTL UNKNOWN - bug: ZeroDivisionError")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_nagios_of_another_command_is_bad_usage() -> None:
    done = here("status", "--nagios")
    assert (done.returncode, done.stdout) == (2, "")
