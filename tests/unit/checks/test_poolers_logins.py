"""What the check `poolers` makes of logins, and of the secrets that nodes and poolers keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.poolers_look import Attempt, digest, digests
from tests.fixtures.fleets.facts import P1, A, B, Facts, pooled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.checks.check import Finding

IN = Attempt("app", "shard0")
REFUSED = 'password authentication failed for user "app"'
ONE, OTHER = digest("SCRAM-SHA-256$4096:one"), digest("SCRAM-SHA-256$4096:other")


def seen(
    of_a: Attempt = IN,
    of_b: Attempt = IN,
    *,
    kept: Mapping[str, str | None] | None = None,
    nodes: tuple[str | None, str | None] | None = None,
) -> Facts:
    """Give facts of a pooler through which the role app has tried to log in to both nodes."""
    made = pooled()
    assert made.topology.database.app_roles == ("app",)
    made.pool(P1, logins={A: [of_a], B: [of_b]}, secrets=kept)
    for node, secret in zip((A, B), nodes or (), strict=False):
        made.put(node, "poolers", {"app": secret})
    return made


def only(made: Facts) -> Finding:
    (found,) = made.findings()
    assert (found.check, found.pooler) == ("poolers", "p1")
    return found


def test_a_secret_that_is_not_the_poolers_though_older_sessions_still_serve() -> None:
    found = only(seen(kept={"app": ONE}, nodes=(ONE, OTHER)))
    assert (found.code, found.shards) == ("login_refused", (4, 5, 6, 7))
    both = seen(
        of_b=Attempt("app", "shard4", refused=REFUSED), kept={"app": ONE}, nodes=(ONE, OTHER)
    )
    assert only(both).actual == REFUSED, "one fault is told once"


def test_secrets_that_differ_where_the_poolers_cannot_be_read() -> None:
    found = only(seen(nodes=(ONE, OTHER)))
    assert (found.code, found.severity.value, found.object) == ("secrets_differ", "warning", "app")
    assert seen(nodes=(ONE, ONE)).findings() == ()


def test_a_login_that_could_not_be_tried_is_noted_unless_secrets_are_compared() -> None:
    untried = Attempt("app", "shard0", untried="no passfile on this machine has its password")
    found = only(seen(of_a=untried))
    assert (found.code, found.severity.value) == ("login_untried", "note")
    assert seen(of_a=untried, of_b=untried, kept={"app": ONE}, nodes=(ONE, ONE)).findings() == ()


def test_a_file_of_users_gives_digests_and_nothing_else() -> None:
    secret = "SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5"  # noqa: S105  # a made-up one
    found = digests(f'"app" "{secret}"\n"old" "md5abc"\n# "x" "y"\n;"z" "y"\n')
    assert found == {"app": digest(secret), "old": None}
    assert secret not in str(found)
