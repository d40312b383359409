"""Django's models on shards: rows go to the shard of their key, and are found there alone."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import Misused
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("django_fleet")


def models() -> Any:
    """Import the models, which Django has once it is set up."""
    from tests.fixtures.django_photos import models

    return models


def member(name: str = "ann") -> Any:
    return models().Member.objects.create(name=name)


def members(count: int = 8) -> list[Any]:
    """Make members in several shards."""
    from shardctl.contrib.django import use_shard

    made = []
    for number in range(count):
        with use_shard(number=number % 8):
            made.append(member(f"m{number}"))
    return made


def refused(call: Callable[[], Any], error: str, said: str | None = None) -> None:
    from shardctl.contrib import django

    with pytest.raises(getattr(django, error), match=said):
        call()


def test_what_hangs_on_a_row_is_in_its_shard() -> None:
    from django.db.models import F

    photo, ann = models().Photo, member()
    first = ann.photos.create(caption="dusk", details={"a": [1]})
    assert photo.objects.filter(owner_id=ann.id).update(views=F("views") + 2) == 1
    ann_again = models().Member.objects.prefetch_related("photos").get(pk=ann.pk)
    assert [one.details for one in ann_again.photos.all()] == [{"a": [1]}]
    tag = models().Tag.objects.create(owner=ann)
    first.tags.add(tag, through_defaults={"owner": ann})
    assert (first.tags.get(), tag.photos.get()) == (tag, first)
    page = models().Page.objects.create(topic="tables", number=2)
    assert models().Note.objects.get(topic="tables").page == page


def test_a_query_without_a_key_is_refused_and_says_what_to_do() -> None:
    photo, ann = models().Photo, member()
    for call in (
        photo.objects.count,
        lambda: photo.objects.exclude(owner=ann).exists(),
        lambda: photo.objects.filter(owner_id__gt=5).first(),
        photo.objects.all().delete,
        lambda: photo.objects.create(caption="a"),
        lambda: photo.objects.filter(owner=ann).union(photo.objects.all()).count(),
        photo(pk=5).likes.count,
        lambda: photo.objects.raw("SELECT 1 AS id")[0],
    ):
        refused(call, "NoShardKey", "unknown which shard")
    assert list(photo.objects.none()) == []
    assert photo.objects.filter(owner__in=[]).count() == 0
    for odd in (-1, 2**63 - 1):
        assert not photo.objects.filter(pk=odd).exists(), "an id from an address is no error"
        assert not photo.objects.filter(owner_id=odd).exists()


def test_a_query_about_several_shards_is_refused() -> None:
    from django.db.models import Count, Exists, Q, prefetch_related_objects

    from shardctl.contrib.django import use_shard

    photo, like, made = models().Photo, models().Like, members()
    for one in made:
        one.photos.create()
    mine, others = photo.objects.filter(owner=made[0]), photo.objects.filter(owner=made[1])
    like.objects.create(member=made[0], photo=others.get())
    liked = like.objects.filter(member=made[0])
    every = photo.objects.for_keys(made).merge()
    for call in (
        lambda: photo.objects.filter(owner__in=made).count(),
        lambda: photo.objects.filter(Q(owner=made[0]) | Q(owner=made[1])).count(),
        photo.objects.for_keys(made).count,
        lambda: prefetch_related_objects(every, "likes"),
        lambda: photo.objects.filter(owner=made[0], pk__in=made[1].photos.all()).count(),
        lambda: list(mine.order_by(Exists(others))),
        lambda: mine.update(views=others.values("views")),
        lambda: list(mine.filter(pk__in=photo.objects.filter(pk__in=others))),
        lambda: list(liked.select_related("photo")),
        lambda: liked.filter(photo__caption="x").delete(),
        lambda: list(mine.annotate(count=Count("likes"))),
        lambda: mine.select_related("reviewer").get(),
    ):
        refused(call, "SeveralShards", "merge")
    with use_shard(made[0].pk):
        refused(lambda: list(photo.objects.exclude(views=9).union(others)), "SeveralShards")
    assert [one.photo for one in liked] == [others.get()]
    assert photo.objects.filter(pk=mine.get().pk, owner=made[1]).count() == 0
    assert photo.objects.filter(owner__in=made[:1]).count() == 1
    assert photo.objects.filter(owner=made[0], pk__in=made[0].photos.all()).count() == 1
    assert photo.objects.filter(Q(owner=made[0]) | Q(owner_id=made[0].pk)).count() == 1


def test_rows_of_many_keys_come_in_one_order() -> None:
    photo, made = models().Photo, members(20)
    rows = [photo(owner=one, caption=f"{n}", details={"n": n}) for n in range(3) for one in made]
    assert photo.objects.bulk_create(rows) == rows
    assert all(row.pk for row in rows)
    newest = sorted(rows, key=lambda row: -row.pk)
    every = photo.objects.for_keys(made)
    assert every.merge("-id", limit=7) == newest[:7]
    found = every.filter(caption__in=["1", "2"]).prefetch_related("owner").merge(["-id"], limit=9)
    assert found == [row for row in newest if row.caption != "0"][:9]
    assert [one.details for one in found] == [{"n": int(one.caption)} for one in found]
    assert len(every.merge("-id", limit_per_key=1)) == 20
    assert {one.owner.name for one in found} <= {one.name for one in made}
    assert photo.objects.for_keys([]).merge() == every.none().merge() == []
    assert every.exclude(pk__in=[]).merge("-id") == newest, "a condition that all rows meet"
    assert asyncio.run(every.amerge("-id", limit=2)) == newest[:2]
    note = models().Note
    note.objects.bulk_create([note(topic=f"t{n}", text="x%y") for n in range(9)])
    some = note.objects.for_keys([f"t{n}" for n in range(5)]).filter(text__contains="%")
    assert {one.topic for one in some.merge()} == {f"t{n}" for n in range(5)}


def test_the_key_of_a_saved_row_stays() -> None:
    photo, (ann, bob) = models().Photo, members(2)
    row = ann.photos.create()
    row.owner = bob
    refused(row.save, "KeyChanged", "owner_id")
    loaded = photo.objects.get(pk=row.pk)
    loaded.owner_id = bob.pk
    refused(loaded.save, "KeyChanged")
    refused(lambda: photo.objects.for_key(ann.pk).update(owner=bob), "KeyChanged")
    refused(lambda: photo.objects.bulk_update([row], ["owner"]), "KeyChanged")
    loaded.refresh_from_db()
    loaded.save()
    partly = photo.objects.only("caption").get(pk=row.pk)
    partly.caption = "partly"
    partly.save()
    assert photo.objects.get(pk=row.pk).caption == "partly"
    loaded.pk, loaded._state.adding, loaded.owner_id = None, True, bob.pk
    loaded.save()
    assert photo.objects.get(pk=loaded.pk)._state.db == bob._state.db
    stolen = photo(pk=row.pk, owner=bob)
    for call in (stolen.save, lambda: photo.objects.bulk_create([stolen])):
        with pytest.raises(Misused, match="'id'"):
            call()


def test_a_row_can_refer_to_another_shard_and_to_another_database() -> None:
    from django.contrib.auth.models import User
    from django.db import IntegrityError

    like, (ann, bob) = models().Like, members(2)
    user, photo = User.objects.create(username="eve"), ann.photos.create()
    liked = like.objects.create(member=bob, photo=photo)
    found = like.objects.get(pk=liked.pk)
    assert (found.photo, found.photo._state.db) == (photo, ann._state.db)
    assert found._state.db == bob._state.db != ann._state.db
    assert photo.likes.create(member=ann)._state.db == ann._state.db
    photo.reviewer = user
    photo.save()
    assert models().Photo.objects.select_related("owner").get(pk=photo.pk).reviewer == user
    assert user.photo_set.for_key(ann.pk).get() == photo
    refused(lambda: list(user.photo_set.all()), "NoShardKey")
    assert photo.likes.filter(member=bob).get() == found
    refused(photo.likes.count, "NoShardKey", "filter by member_id")
    with pytest.raises(IntegrityError):
        like.objects.create(member=bob, photo=photo)
    with pytest.raises(IntegrityError):
        models().Photo.objects.create(owner_id=ann.pk + 1)
    bob.delete()
    assert not like.objects.for_key(found.member_id).exists()


def test_a_block_says_which_shard_is_meant() -> None:
    from shardctl.contrib.django import use_shard

    photo, (ann, bob) = models().Photo, members(2)
    mine = ann.photos.create(caption="mine")
    theirs = bob.photos.create(caption="theirs")
    with raises_code("key_unsupported"), use_shard(uuid.uuid4()):
        pass
    with use_shard(ann.pk) as alias:
        assert alias == ann._state.db
        assert list(photo.objects.all()) == [mine]
        assert photo.objects.get(owner=bob) == theirs
        with use_shard(bob.pk):
            assert photo.objects.get() == theirs
        assert photo.objects.count() == 1
        assert member()._state.db == ann._state.db

    async def tasks() -> list[str]:
        async def of(key: int) -> str:
            with use_shard(key):
                return str((await photo.objects.aget()).caption)

        return list(await asyncio.gather(of(ann.pk), of(bob.pk)))

    assert asyncio.run(tasks()) == ["mine", "theirs"]
