"""How `verify` prints findings."""

from __future__ import annotations

from dataclasses import replace

from shardctl.checks.check import Finding, Severity
from shardctl.cli.verify import _alike
from shardctl.topology.model import PoolerName

NOTE = Finding(
    "poolers", "no_prepared_statements", Severity.note, "PgBouncer 1.18.0 has none", "some",
    "install 1.21", pooler=PoolerName("p1"), object="prepared statements",
)  # fmt: skip


def test_a_note_about_several_poolers_is_one_line_and_errors_are_a_line_each() -> None:
    second = replace(NOTE, pooler=PoolerName("p2"))
    errors = [replace(one, severity=Severity.error) for one in (NOTE, second)]
    other = replace(NOTE, object="another")
    assert _alike([*errors, NOTE, other, second]) == [
        [errors[0]], [errors[1]], [NOTE, second], [other],
    ]  # fmt: skip
