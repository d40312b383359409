"""Durations and sizes: one syntax for all options; a number has its unit."""

from __future__ import annotations

import pytest

from shardctl.cli import options
from tests.fixtures.commands import here


def test_a_duration() -> None:
    given = {"500ms": 500, "2s": 2000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000, "0": 0}
    parse = options.duration_option("").parser
    assert {text: parse(text).ms for text in given} == given


def test_a_size() -> None:
    for text, power in (("50M", 20), ("50MB", 20), ("64k", 10), ("64kB", 10), ("2G", 30)):
        assert options.size(text) == int(text.rstrip("BkMG")) << power


@pytest.mark.parametrize("given", ["fast", "", "0M", "50", "1.5G", "5B", "50MiB"])
def test_what_is_not_a_size(given: str) -> None:
    with pytest.raises(ValueError, match=r"size|small|empty"):
        options.size(given)


@pytest.mark.parametrize(
    "line",
    [
        "move-shards 2 --to c --max-pause soon",
        "move-shards 2 --to c --retain -1s",
        "move-shards 2 --to c --max-rate fast",
        "move-shards 2 --to c --max-wal 20",
        "migrate --lock-timeout 0ms",
        "repack --wait-timeout 500ms",
        "sql true --timeout 0s",
        "run true --timeout 30",
        "events --since yesterday",
    ],
)
def test_a_bad_value_is_bad_usage_that_names_option_and_value(line: str) -> None:
    """No topology is named: a value is looked at before anything else."""
    *words, option, value = line.split()
    done = here(*words, option, value)
    assert done.returncode == 2
    assert f"'{option}'" in done.stderr
    assert f"'{value}'" in done.stderr
