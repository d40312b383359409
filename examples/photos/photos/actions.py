"""What users do: post, like, follow, block, leave.

"a follows b" has an end in each one's shard, and no transaction has both. The first transaction
changes one end and writes an outbox row. `deliver` then brings that end's numbers to the other
end, and deletes the row. A process that dies in between leaves it, and `manage.py repair` delivers
it. Delivering twice, late, or beside another one does no harm: the higher number counts.
"""

from photos.models import Account, Follower, Following, Like, Outbox, Photo, User
from shardctl.contrib.django import shard_atomic

ENDS = {"following": Following, "follower": Follower}
OPPOSITE = {"following": "follower", "follower": "following"}
MINE = {"following": "follows", "follower": "blocks"}


class Refused(Exception):
    """What a user may not do."""


@shard_atomic("me")
def post(me, caption):
    """Post a photo."""
    Photo.objects.create(user_id=me, by=_living(me).name, caption=caption)


@shard_atomic("me")
def like(me, owner, photo):
    """Like a photo, or no longer."""
    _living(me)
    if not Like.objects.for_key(me).filter(photo_id=photo).delete()[0]:
        Like.objects.create(user_id=me, owner_id=owner, photo_id=photo)


def follow(me, other, wanted=True):
    """Follow a user, or no longer."""
    if me == other:
        raise Refused("You cannot follow yourself.")
    change(me, "following", other, wanted)
    deliver(me)


def block(me, other, wanted=True):
    """Block a user, who then no longer follows me; or no longer block."""
    change(me, "follower", other, wanted)
    deliver(me)


def leave(me):
    """Delete a user: no photos stay, no follows, and all others are blocked."""
    _leave(me)
    Account.objects.filter(id=me).delete()
    deliver(me)


@shard_atomic("me")
def change(me, name, other, wanted):
    """Change the number of an end that is mine, if it is not as wanted."""
    _living(me)
    end, mine = _end(name, me, other), MINE[name]
    if name == "following" and wanted and end.blocks % 2:
        raise Refused("This user has blocked you.")
    if getattr(end, mine) % 2 != wanted:
        setattr(end, mine, getattr(end, mine) + 1)
        _save(end, tell=True)


@shard_atomic("me")
def _leave(me):
    _living(me)
    User.objects.for_key(me).update(name="", deleted=True)
    Photo.objects.for_key(me).delete()
    Like.objects.for_key(me).delete()
    for end in Following.objects.for_key(me).filter(live=True):
        end.follows += 1
        _save(end, tell=True)
    for end in Follower.objects.for_key(me):
        end.blocks += 1 - end.blocks % 2
        _save(end, tell=True)


def deliver(user):
    """Bring what has changed in a user's shard to the other ends, and their answers back."""
    users = {user}
    while users:
        user = users.pop()
        for row in Outbox.objects.for_key(user).order_by("id"):
            # The row was read before its end is: a later change has another row.
            end = ENDS[row.end].objects.for_key(user).get(other_id=row.other_id)
            if tell(row.end, end):
                users.add(row.other_id)
            row.delete()


def tell(name, end):
    """Bring an end's numbers to the other end; return whether that one has an answer."""
    return _hear(end.other_id, OPPOSITE[name], end.user_id, end.follows, end.blocks)


@shard_atomic("me")
def _hear(me, name, other, follows, blocks):
    deleted, end = _lock(me).deleted, _end(name, me, other)
    mine = end.follows, end.blocks
    if name == "following" and blocks > end.blocks:
        end.follows += end.follows % 2  # a block ends a follow, even one that was lifted again
    if name == "follower" and deleted:
        end.blocks += 1 - end.blocks % 2  # a deleted user blocks everybody
    answers = (end.follows, end.blocks) != mine
    end.follows, end.blocks = max(end.follows, follows), max(end.blocks, blocks)
    if (end.follows, end.blocks) != mine:
        _save(end, tell=answers)
    return answers


def _lock(user):
    """Lock a user's row, so that changes of one user's edges come one after another."""
    return User.objects.for_key(user).select_for_update(no_key=True).get()


def _living(user):
    locked = _lock(user)
    if locked.deleted:
        raise Refused("This user is deleted.")
    return locked


def _end(name, user, other):
    """Return an end, a new one if there is none; the caller has locked the user."""
    model = ENDS[name]
    found = model.objects.for_key(user).filter(other_id=other).first()
    return found or model(user_id=user, other_id=other)


def _save(end, tell):
    end.save()
    if tell:
        name = type(end).__name__.lower()
        Outbox.objects.create(user_id=end.user_id, other_id=end.other_id, end=name)
