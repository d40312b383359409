"""The fence on every major version: what a transaction has made in a moved schema is waited for."""

from __future__ import annotations

import pytest

from shardctl.access import stream_fence, structure_digest
from shardctl.access.fence import FenceRefused, UnloggedMade, WritersLeft
from tests.fixtures.moves.fenced import SCHEMA, Fenced

MAKING = {
    "table": "CREATE TABLE shard2.made AS SELECT 1 AS id",
    "moved in": "ALTER TABLE public.made SET SCHEMA shard2",
    "view": "CREATE VIEW shard2.made AS SELECT 1 AS id",
    "sequence": "CREATE SEQUENCE shard2.made",
    "row type": "CREATE TYPE shard2.made AS (id bigint)",
}
"""What makes a relation in the shard, and takes no lock there that a write takes."""


@pytest.mark.parametrize("kind", MAKING)
def test_what_is_made_and_not_committed_is_waited_for(fenced: Fenced, kind: str) -> None:
    fenced.other.execute(MAKING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.commit()
    fenced.cut()
    assert fenced.made() == 1


CHANGING = {
    "dropped": "DROP TABLE shard2.photos",
    "moved out": "ALTER TABLE shard2.photos SET SCHEMA public",
    "index": "CREATE INDEX ON shard2.photos (id)",
    "granted": "GRANT USAGE ON SCHEMA shard2 TO PUBLIC",
    "all dropped": "DROP SCHEMA shard2 CASCADE",
    "value": "ALTER TYPE shard2.mood ADD VALUE 'bad'",
    "function": "DROP FUNCTION shard2.f()",
}
"""What changes something in the shard under a lock of its own."""


BINDING = {
    "bound view": "CREATE VIEW public.bound AS SELECT * FROM shard2.photos",
    "bound rule": "CREATE RULE bound AS ON INSERT TO public.made"
    " DO INSERT INTO shard2.photos VALUES (1)",
    "bound function": "CREATE FUNCTION public.bound() RETURNS void LANGUAGE sql"
    " BEGIN ATOMIC INSERT INTO shard2.photos VALUES (1); END",
}
"""What is made elsewhere and bound to a table of the shard: it writes there whatever its name."""


@pytest.mark.parametrize("kind", CHANGING | BINDING)
def test_what_is_changed_or_bound_and_not_committed_is_waited_for(
    fenced: Fenced, kind: str
) -> None:
    fenced.other.execute((CHANGING | BINDING)[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.rollback()
    fenced.cut()


def test_what_a_prepared_transaction_has_made_is_waited_for(fenced: Fenced) -> None:
    fenced.other.execute(MAKING["table"].encode())
    fenced.other.execute("PREPARE TRANSACTION 'made'")
    fenced.other.rollback()
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.session.execute("COMMIT PREPARED 'made'")
    fenced.cut()
    assert fenced.made() == 1


def test_what_was_made_unlogged_meanwhile_is_refused(fenced: Fenced) -> None:
    fenced.other.execute("CREATE UNLOGGED TABLE shard2.made ()")
    fenced.other.commit()
    with pytest.raises(UnloggedMade):
        fenced.cut()
    fenced.call_off()


def test_who_only_reads_is_not_waited_for(fenced: Fenced) -> None:
    fenced.other.execute("SELECT FROM shard2.photos")
    fenced.cut()


def test_who_makes_things_elsewhere_is_not_waited_for(fenced: Fenced) -> None:
    fenced.other.execute("CREATE TABLE public.other (id bigint); CREATE TEMP TABLE t (id bigint)")
    fenced.cut()


OPEN = {
    **MAKING,
    **CHANGING,
    **BINDING,
    "granted on a table": "GRANT SELECT ON shard2.photos TO PUBLIC",
}
OPEN |= {"reads": "SELECT FROM shard2.photos", "altered": "ALTER FUNCTION shard2.f() STABLE"}


@pytest.mark.parametrize("kind", OPEN)
def test_a_shard_that_somebody_uses_or_changes_is_not_untouched(fenced: Fenced, kind: str) -> None:
    digest, seen = stream_fence.known(fenced.session, [SCHEMA])
    assert digest == structure_digest.digest(fenced.session, [SCHEMA])
    assert seen
    fenced.other.execute(OPEN[kind].encode())
    assert stream_fence.untouched(fenced.session, seen) is None
    # So it is where that began before shardctl has seen what there is. A rename waits for GRANT.
    _, seen = stream_fence.known(fenced.session, [SCHEMA])
    if kind != "granted":
        assert not (seen and stream_fence.untouched(fenced.session, seen))


def test_a_shard_is_untouched_behind_a_fence(fenced: Fenced) -> None:
    fenced.session.execute("INSERT INTO shard2.photos VALUES (1)")
    _, seen = stream_fence.known(fenced.session, [SCHEMA])
    fenced.put_up()
    assert stream_fence.untouched(fenced.session, seen)
    fenced.session.execute("CREATE TABLE public.elsewhere ()")
    assert stream_fence.untouched(fenced.session, seen)


def test_a_shard_with_an_unlogged_table_is_not_untouched(fenced: Fenced) -> None:
    fenced.session.execute("CREATE UNLOGGED TABLE shard2.quick ()")
    assert not stream_fence.known(fenced.session, [SCHEMA])[1]
