"""The fence on every major version: what a transaction has made in a moved schema is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.access.fence import FenceRefused, WritersLeft
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from tests.fixtures.moves.fenced import Fenced

MAKING = {
    "table": "CREATE TABLE shard2.made AS SELECT 1 AS id",
    "moved in": "ALTER TABLE public.made SET SCHEMA shard2",
    "sequence": "CREATE SEQUENCE shard2.made",
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


def test_what_was_made_unlogged_meanwhile_is_refused(fenced: Fenced) -> None:
    fenced.other.execute("CREATE UNLOGGED TABLE shard2.made ()")
    fenced.other.commit()
    with raises_code("unlogged_made"):
        fenced.cut()
    fenced.call_off()
