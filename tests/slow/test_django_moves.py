"""Django's models under load while a shard moves: no error, and nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.requests import Requests

if TYPE_CHECKING:
    from shardctl.testing.fleet import ShardFleet

pytestmark = pytest.mark.proof

SHARDS = (0, 1, 5)
"""One that moves, one that stays on its node, and one of the other node."""
EACH = 3


def request(owner: int, token: int) -> None:
    """Write by itself, or in a transaction, and read."""
    from shardctl.contrib.django import shard_atomic
    from tests.fixtures.django_photos.models import Member, Photo

    @shard_atomic("owner", attempts=5)
    def write(owner: int) -> None:
        assert Member.objects.get(pk=owner)
        photo = Photo.objects.create(owner_id=owner, caption="first")
        Photo.objects.filter(pk=photo.pk).update(caption=str(token))

    if token % 2:
        write(owner)
    else:
        Photo.objects.create(owner_id=owner, caption=str(token))
    assert Photo.objects.get(owner_id=owner, caption=str(token))


def test_clients_of_django_do_not_notice_a_move(
    django_fleet: ShardFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections

    from shardctl.contrib.django import database, use_shard
    from tests.fixtures.django_photos.models import Member, Photo

    # A test fleet looks for open transactions before each statement, which production does not.
    monkeypatch.setattr(database()._known, "in_tests", False)
    members = []
    for number in SHARDS:
        with use_shard(number=number):
            members.append(Member.objects.create(name=str(number)).pk)
    with Requests(request, members, each=EACH, over=connections.close_all) as clients:
        for to in ("b", "a"):
            clients.wait(more=100)
            django_fleet.shard_move(0, to)
            clients.wait(more=50)
    assert clients.errors == []
    found = sorted(
        (one.owner_id, int(one.caption)) for one in Photo.objects.for_keys(members).merge()
    )
    assert found == sorted((owner, token) for owner in members for token in clients.kept[owner])
    pools = database().stats().pools
    assert all(one["pool_size"] <= EACH * len(SHARDS) for one in pools.values())
