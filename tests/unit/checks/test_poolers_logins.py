"""What the check `poolers` makes of logins, and of the secrets that nodes and poolers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.poolers_look import Attempt, digest, digests
from tests.fixtures.fleets.facts import P1, A, B, pooled

if TYPE_CHECKING:
    from shardctl.checks.check import Finding

IN = Attempt("app", "shard0")
ONE, OTHER = digest("SCRAM-SHA-256$4096:one"), digest("SCRAM-SHA-256$4096:other")


def seen(*secrets: str) -> tuple[Finding, ...]:
    """Judge a pooler through which the role app could log in to both nodes, with its secrets."""
    made = pooled()
    assert made.topology.database.app_roles == ("app",)
    made.pool(P1, logins={A: [IN], B: [IN]})
    for node, secret in zip((A, B), secrets, strict=True):
        made.put(node, "poolers", {"app": secret})
    return made.findings()


def test_secrets_that_differ_where_the_poolers_cannot_be_read() -> None:
    (found,) = seen(ONE, OTHER)
    assert (found.check, found.pooler) == ("poolers", "p1")
    assert (found.code, found.severity.value, found.object) == ("secrets_differ", "warning", "app")
    assert seen(ONE, ONE) == ()


def test_a_file_of_users_gives_digests_and_nothing_else() -> None:
    secret = "SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5"  # noqa: S105  # a made-up one
    found = digests(f'"app" "{secret}"\n"old" "md5abc"\n# "x" "y"\n;"z" "y"\n')
    assert found == {"app": digest(secret), "old": None}
    assert secret not in str(found)
