"""`manage.py populate`: users, photos of two weeks, likes, and follows by a power law."""

import random
import time
from itertools import accumulate

from django.contrib.auth.hashers import make_password
from django.core.management.base import BaseCommand

from photos.models import LAYOUT, Account, User
from shardctl.contrib.django import database

FIRST = "ada ben cleo dan eva finn gia hugo ida jon kira leo mia noah ola pia rosa sam tia".split()
LAST = "reef stone field brook hill lake moss pine dune cove vale ridge glen fern marsh".split()
WHAT = "Dusk,Dawn,Fog,Rain,Low tide,Silence,A long walk,Snow,Harvest,The last bus".split(",")
WHERE = "over the harbour,in the hills,at the border,near home,by the river".split(",")
TWO_WEEKS = 14 * 86_400_000  # ms


class Command(BaseCommand):
    help = "Fill an empty fleet. The password of all users is `photos`."

    def handle(self, **_):
        users, photos, began, chance = 1000, 20_000, time.time(), random.Random(1)
        names = [f"{chance.choice(FIRST)}.{chance.choice(LAST)}{n or ''}" for n in range(users)]
        people = User.objects.bulk_create([User(name=name) for name in names])  # brings their ids
        password = make_password("photos")
        Account.objects.bulk_create(
            [Account(id=one.id, username=one.name, password=password) for one in people]
        )
        # The nth user is n^0.8 times less popular than the first.
        popular = list(accumulate((n + 1) ** -0.8 for n in range(users)))
        edges = set()
        for one in people:
            wanted = min(int(8 * chance.paretovariate(1.3)), users // 2)
            for other in chance.choices(people, cum_weights=popular, k=wanted):
                edges.add((one.id, other.id))
        edges = [(a, b, 1, 0) for a, b in edges if a != b]
        fields = "user_id", "other_id", "follows", "blocks"
        write("following", fields, edges)
        write("follower", fields, [(b, a, *numbers) for a, b, *numbers in edges])
        # Photos of the past: an id is composed of the time, the user's shard and a number.
        made = []
        for n, one in enumerate(chance.choices(people, cum_weights=popular, k=photos)):
            at = int(began * 1000 - TWO_WEEKS * chance.random() ** 2) - 60_000
            caption = f"{chance.choice(WHAT)} {chance.choice(WHERE)}"
            number = LAYOUT.encode(at, one.shard, n % 1024)
            made.append((number, one.id, one.name, caption))
        write("photo", ("id", "user_id", "by", "caption"), made)
        likes = [(chance.choice(people).id, *one[:2]) for one in chance.sample(made, photos // 5)]
        write("like", ("user_id", "photo_id", "owner_id"), likes)
        made = f"{users:,} users, {photos:,} photos, {len(edges):,} follows"
        self.stdout.write(f"{made}: {time.time() - began:.1f} s")


def write(table, fields, rows):
    named = [dict(zip(fields, row, strict=True)) for row in rows]
    database().insert_many(f"photos_{table}", named, key_field="user_id")
