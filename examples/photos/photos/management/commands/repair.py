"""`manage.py repair`: delivers what killed requests left, and finds edges whose ends differ."""

from django.core.management.base import BaseCommand

from photos.actions import ENDS, OPPOSITE, deliver, tell
from photos.models import Account
from shardctl.contrib.django import database

EVERYTHING = 10**9  # rows; a larger fleet would do this shard by shard


class Command(BaseCommand):
    help = "Complete what killed requests left, list edges whose ends differ, and repair those."

    def add_arguments(self, parser):
        parser.add_argument("--dry-run", action="store_true", help="only list")

    def handle(self, *, dry_run, **_):
        def rows(fields, table, **where):
            return database().scatter(fields.split(), f"photos_{table}", limit=EVERYTHING, **where)

        for user, other, end in rows("user_id other_id end", "outbox"):
            self.stdout.write(f"undelivered: user {user}, {end} {other}")
            if not dry_run:
                deliver(user)
        gone = [user for (user,) in rows("id", "user", where="deleted")]
        if not dry_run:
            Account.objects.filter(id__in=gone).delete()
        ends = {}
        for name in ENDS:
            found = rows("user_id other_id follows blocks", name)
            ends[name] = {(user, other): numbers for user, other, *numbers in found}
        for name, user, other in [(one, *pair) for one in ENDS for pair in ends[one]]:
            numbers, there = ends[name][user, other], ends[OPPOSITE[name]].get((other, user))
            if there != numbers:
                said = f"{name} {other}: {numbers}, and there {there}"
                self.stdout.write(f"ends differ: user {user}, {said}")
                if not dry_run:
                    tell(name, ENDS[name].objects.for_key(user).get(other_id=other))
                    deliver(other)
