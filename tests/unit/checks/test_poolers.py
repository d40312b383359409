"""What the check `poolers` makes of what it saw, without a pooler: each fault is told once."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest

from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Alias
from tests.fixtures.fleets.facts import P1, A, B, Facts, pooled

if TYPE_CHECKING:
    from collections.abc import Callable

NodeMap = tuple[str, str, tuple[int, ...], str | None]
"""A finding's code, severity, shards and object."""

FILE = "/etc/pgbouncer/shards.ini"


def told(seen: Facts) -> list[NodeMap]:
    """Judge with all checks; everything that is told is of the one pooler."""
    findings = seen.findings()
    assert {(f.check, f.pooler, f.node) for f in findings} <= {("poolers", "p1", None)}
    assert all(f.hint and f.actual and f.expected for f in findings)
    return [(f.code, f.severity.value, f.shards, f.object) for f in findings]


def text_of(seen: Facts) -> str:
    text = seen.poolers[P1].text
    assert text is not None
    return text


def write(seen: Facts, text: str | None) -> None:
    """Let the file be another one; the pooler has not read it."""
    seen.pool(text=text)


def owned_otherwise(seen: Facts) -> str:
    """Give the file of a map by which all shards from 2 on are on b."""
    a, b = seen.topology.nodes.values()
    nodes = {A: dataclasses.replace(a, shards=a.shards[:2]),
             B: dataclasses.replace(b, shards=(*a.shards[2:], *b.shards))}  # fmt: skip
    other = dataclasses.replace(seen.topology, nodes=nodes)
    return render.databases(other, other.poolers[P1], 1)


def keep_other_aliases(seen: Facts) -> None:
    other = owned_otherwise(seen)
    port = seen.topology.nodes[B].port
    write(seen, other)
    seen.alias("shard2", "shard3", port=port)


def have_a_fallback_in_the_file(seen: Facts) -> None:
    write(seen, text_of(seen) + "* = host=127.0.0.1 port=1\n")


def write_file_oneself(seen: Facts) -> None:
    write(seen, "[databases]" + text_of(seen).partition("[databases]")[2])


FAULTS: dict[str, tuple[Callable[[Facts], None], NodeMap]] = {
    "the file is somebody's own": (write_file_oneself, ("file_differs", "error", (), FILE)),
    "the file has a fallback database": (
        have_a_fallback_in_the_file, ("file_differs", "error", (), FILE),
    ),
    "the file is empty": (lambda seen: write(seen, ""), ("file_differs", "error", (), FILE)),
    "the file is of another map": (keep_other_aliases, ("file_differs", "error", (), FILE)),
    "many aliases are paused": (
        lambda seen: seen.alias(*(f"shard{n}" for n in range(1, 6)), paused=True),
        ("paused", "error", (1, 2, 3, 4, 5), "shard1, shard2, shard3 and 2 more"),
    ),
    "a killed command has left a short retry": (
        lambda seen: seen.pool(config={"server_login_retry": "0.01"}),
        ("login_retry", "warning", (), "server_login_retry"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_nothing_else_is_told(fault: str) -> None:
    breaks, expected = FAULTS[fault]
    seen = pooled()
    breaks(seen)
    assert told(seen) == [expected]


@pytest.mark.parametrize("other", ["cluster: test", "map version: 1"])
def test_a_file_that_apply_would_not_replace_is_told_as_such(other: str) -> None:
    seen = pooled()
    text = re.sub("checksum: .*", "checksum: ", text_of(seen)).replace(other, f"{other}9")
    write(seen, render._seal(text, render._digest(text)))
    [finding] = seen.findings()
    assert finding.code == "file_differs"
    assert "--force" in finding.hint


def test_databases_of_the_operators_are_none_of_our_business() -> None:
    seen = pooled()
    port = seen.topology.nodes[A].port
    offered = dict(seen.poolers[P1].offered)
    offered["reports"] = Alias("reports", None, port, "postgres", paused=True, disabled=False)
    offered["postgres"] = Alias("postgres", None, port, "postgres", paused=False, disabled=True)
    seen.pool(offered=offered)
    assert told(seen) == []
