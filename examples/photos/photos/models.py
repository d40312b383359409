"""What is where: one account in `default`, and everything else of a user in the user's shard."""

from datetime import UTC, datetime

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Mod
from django.db.models.lookups import Exact

from shardctl.contrib.django import ShardedId, ShardedModel, database
from shardctl.ids.layout import Layout

LAYOUT = Layout()
"""How an id is made of a time, a shard and a number, in this order."""


class Account(AbstractUser):
    """A name and a password, in `default`. Its id is the user's key, which a shard has made."""

    id = models.BigIntegerField(primary_key=True)


class Row(ShardedModel):
    """A row whose id says when it was made, and in which shard."""

    id = ShardedId()

    class Meta:
        abstract = True

    @property
    def time(self):
        return datetime.fromtimestamp(LAYOUT.decode(self.id).time_ms / 1000, UTC)

    @property
    def shard(self):
        return database().shard_of_id(self.id)

    @property
    def node(self):
        return database().node_of(self.shard)


class User(Row):
    """A user. The id is the key of all that belongs to the user, and so names its shard."""

    shard_key = "id"
    name = models.CharField(max_length=150)
    # A deleted user's row stays: it answers follows that arrive later.
    deleted = models.BooleanField(default=False)


class Photo(Row):
    """A photo, in its user's shard."""

    shard_key = "user_id"
    user_id = models.BigIntegerField()
    by = models.CharField(max_length=150)  # the user's name: so a feed asks for photos alone
    caption = models.CharField(max_length=200)

    class Meta:
        indexes = [models.Index(fields=["user_id", "id"], name="photo_of_user")]

    def style(self):
        """Return the colour and the place of the sun: photos are drawn, and not downloaded."""
        return f"--hue: {self.id % 360}; --sun: {self.id % 83 + 8}%"


class Like(Row):
    """A like, in the shard of the user who likes; `owner_id` is the key that finds the photo."""

    shard_key = "user_id"
    user_id = models.BigIntegerField()
    owner_id = models.BigIntegerField()
    photo_id = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user_id", "photo_id"], name="one_like")]


def computed(expression):
    """Return a yes or no that the database computes from the row's other fields."""
    boolean = models.BooleanField()
    return models.GeneratedField(expression=expression, output_field=boolean, db_persist=True)


class Edge(Row):
    """One end of "a follows b"; the other end is in the other user's shard.

    Both numbers only grow. `follows` is odd while a wants to follow, and only a's shard raises it;
    `blocks` is odd while b blocks a, and only b's shard raises it. So of two versions of a number
    the higher one is newer, in whatever order and however often they arrive.
    """

    shard_key = "user_id"
    user_id = models.BigIntegerField()
    other_id = models.BigIntegerField()
    follows = models.IntegerField(default=0)
    blocks = models.IntegerField(default=0)
    blocked = computed(Exact(Mod(F("blocks"), 2), 1))
    live = computed(Q(Exact(Mod(F("follows"), 2), 1), Exact(Mod(F("blocks"), 2), 0)))

    class Meta:
        abstract = True
        constraints = [
            models.UniqueConstraint(fields=["user_id", "other_id"], name="one_%(class)s")
        ]


class Following(Edge):
    """The end in a's shard: whom `user_id` follows."""


class Follower(Edge):
    """The end in b's shard: who follows `user_id`."""


class Outbox(Row):
    """An end that has changed, in the transaction that changed it: the other end must hear."""

    shard_key = "user_id"
    user_id = models.BigIntegerField()
    other_id = models.BigIntegerField()
    end = models.CharField(max_length=9)  # "following" or "follower": of which end
