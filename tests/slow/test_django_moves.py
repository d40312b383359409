"""Django's models under load while a shard moves: no error, nothing lost, no long wait."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import service
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.testing.fleet import ShardFleet

pytestmark = pytest.mark.proof

THREADS = 8
SHARDS = (0, 1, 5)
"""One that moves, one that stays on its node, and one of the other node."""
MORE_MS = 60


class Clients:
    """Threads that write and read, and what they were told."""

    def __init__(self, members: list[Any]) -> None:
        self.members = members
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.acknowledged: set[tuple[int, str]] = set()
        self.took: list[float] = []
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(THREADS)]

    def run(self, number: int) -> None:
        from django.db import connections

        from tests.fixtures.django_photos.models import Photo

        count, owner = 0, self.members[number % len(self.members)]
        try:
            while not self.stop.is_set():
                count += 1
                caption = f"{number} {count}"
                began = time.monotonic()
                call: Callable[..., Any] = (_by_itself, _in_a_transaction)[count % 2]
                call(owner.pk, caption)
                written = time.monotonic()
                assert Photo.objects.get(owner=owner, caption=caption)
                self.acknowledged.add((owner.pk, caption))
                self.took += [written - began, time.monotonic() - written]
                time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001  # the test tells of it
            self.errors.append(error)
        finally:
            connections.close_all()

    def wait(self, more: int) -> None:
        aim = len(self.acknowledged) + more
        wait_for(lambda: len(self.acknowledged) > aim or self.errors)


def _by_itself(owner: int, caption: str) -> None:
    from tests.fixtures.django_photos.models import Photo

    Photo.objects.create(owner_id=owner, caption=caption)


def _in_a_transaction(owner: int, caption: str) -> None:
    from shardctl.contrib.django import shard_atomic
    from tests.fixtures.django_photos.models import Member, Photo

    @shard_atomic("owner", attempts=5)
    def write(owner: int) -> None:
        assert Member.objects.get(pk=owner)
        photo = Photo.objects.create(owner_id=owner, caption=f"{caption} first")
        Photo.objects.filter(pk=photo.pk).update(caption=caption)

    write(owner)


def test_clients_of_django_do_not_notice_a_move(
    django_fleet: ShardFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardctl.contrib.django import database, use_shard
    from tests.fixtures.django_photos.models import Member, Photo

    pauses: list[float] = []
    over: list[float] = []
    start = service.start

    def started(*given: Any, **named: Any) -> Any:
        context = start(*given, **named)
        pauses.append(context.timeline.pause_ms or 0.0)
        return context

    monkeypatch.setattr(service, "start", started)
    # A test fleet looks for open transactions before each statement, which production does not.
    monkeypatch.setattr(database()._known, "in_tests", False)
    members = []
    for number in SHARDS:
        with use_shard(number=number):
            members.append(Member.objects.create(name=str(number)))
    clients = Clients(members)
    for one in clients.threads:
        one.start()
    try:
        for to in ("b", "a"):
            clients.wait(more=100)
            clients.took.clear()
            django_fleet.shard_move(0, to)
            clients.wait(more=50)
            over.append(max(clients.took) * 1000 - pauses[-1])
    finally:
        clients.stop.set()
        for one in clients.threads:
            one.join(120)
    assert clients.errors == []
    # What is slow without a move is as slow with it: the quieter of both tells.
    assert min(over) <= MORE_MS
    found = Photo.objects.for_keys(members).merge()
    assert {(one.owner_id, one.caption) for one in found} == clients.acknowledged
    assert len(found) == len(clients.acknowledged)
    pools = database().stats().pools
    assert all(one["pool_size"] <= THREADS for one in pools.values())
