"""A Django project on shards: transactions, moves, migrations, checks, admin, test runner."""

from __future__ import annotations

import re
import threading
import unittest
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.router import ShardMoved
from shardctl.state import keys, migrations
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.django_photos.project import MIGRATIONS
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.testing.fleet import ShardFleet

pytestmark = pytest.mark.usefixtures("django_fleet")

HEAD = "from django.db import migrations, models\nimport shardctl.contrib.django\n"
MIGRATION = HEAD + "class Migration(migrations.Migration):\n    "
LATER = {
    "0002_rename": MIGRATION
    + """dependencies = [("photos", "0001_initial")]
    operations = [
        migrations.AlterModelTable("note", "notes"),
        migrations.RenameField("note", "topic", "Subject"),
        migrations.AlterModelManagers(
            "note", [("objects", shardctl.contrib.django.ShardedManager("Subject"))]
        ),
        migrations.AddField("photo", "place", models.TextField(default="here")),
        migrations.RunSQL("UPDATE photos_photo SET place = '50 %'"),
        migrations.DeleteModel("like"),
    ]
""",
    "0003_index": HEAD
    + "from django.contrib.postgres.operations import AddIndexConcurrently\n"
    + """class Migration(migrations.Migration):
    atomic = False
    dependencies = [("photos", "0002_rename")]
    operations = [
        AddIndexConcurrently("photo", models.Index(fields=["views"], name="by_views"))
    ]
""",
}
REFUSED = {
    "RunPython": "migrations.RunPython(print)",
    "CONCURRENTLY|transaction": "AddIndexConcurrently("
    "'photo', models.Index(fields=['views'], name='x'))",
}


def models() -> Any:
    from tests.fixtures.django_photos import models

    return models


def member(number: int = 0) -> Any:
    """Make a member in a shard."""
    from shardctl.contrib.django import use_shard

    with use_shard(number=number):
        return models().Member.objects.create(name=f"m{number}")


def captions(owner: Any) -> set[str]:
    rows = models().Photo.objects.for_key(owner.pk)
    return set(rows.values_list("caption", flat=True))


def test_transactions_savepoints_and_what_follows_a_commit() -> None:
    from django.db import IntegrityError, transaction

    ann, bob = member(1), member(6)
    said: list[Any] = []
    using = ann._state.db
    with transaction.atomic(using=using), transaction.atomic(using=bob._state.db):
        transaction.on_commit(lambda: said.append(captions(ann)), using=using)
        ann.photos.create(caption="kept")
        bob.photos.create(caption="of bob")
        with pytest.raises(IntegrityError), transaction.atomic(using=using):  # noqa: PT012
            transaction.on_commit(lambda: said.append("never"), using=using)
            ann.photos.create(caption="undone")
            models().Member.objects.create(pk=ann.pk, name="again")
        assert said == []
    assert said == [{"kept"}]
    assert captions(bob) == {"of bob"}
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):  # noqa: PT012
        ann.photos.create(caption="undone")
        _ = 1 / 0
    assert captions(ann) == {"kept"}


def test_a_function_is_run_again_in_a_transaction_of_its_shard() -> None:
    from django.db import connections, transaction

    from shardctl.contrib.django import shard_atomic

    ann, tried = member(3), []

    @shard_atomic("user_id")
    def fails_once(name: str, user_id: int) -> str:
        models().Photo.objects.create(owner_id=user_id, caption=name)
        tried.append(connections[ann._state.db].in_atomic_block)
        if len(tried) == 1:
            with connections[ann._state.db].cursor() as cursor:
                cursor.execute("DO $$BEGIN RAISE 'no' USING ERRCODE = '40P01'; END$$")
        return name

    assert fails_once("twice", ann.pk) == "twice"
    assert tried == [True, True]
    assert captions(ann) == {"twice"}

    @shard_atomic(lambda row: row.pk, attempts=5)
    def after_commit(row: Any) -> None:
        tried.append(True)
        row.photos.create(caption="once")
        transaction.on_commit(moved, using=row._state.db)

    def moved() -> None:
        raise ShardMoved(
            ShardId(3), NodeName("a"), NodeName("b")
        )  # of something else that the function began

    tried.clear()
    with pytest.raises(ShardMoved):
        after_commit(ann)
    assert (len(tried), ann.photos.filter(caption="once").count()) == (1, 1)


def test_a_transaction_that_met_a_fence_is_done_again(django_fleet: ShardFleet) -> None:
    """A cutover begins in its middle, and is undone as soon as the router has looked for it."""
    from django.db import connections, transaction

    from shardctl.contrib.django import database, shard_atomic

    ann, tried = member(1), []
    using, known = ann._state.db, database()._known
    said: list[Any] = []
    name, retired = "shard1", "shard1__retired_00000000"

    def rename(old: str, new: str) -> None:
        with psycopg.connect(django_fleet.dsn("a", user="postgres")) as session:
            session.execute(f"ALTER SCHEMA {old} RENAME TO {new}".encode())

    def undo(asked_at: float) -> None:
        wait_for(lambda: known.asked_at != asked_at)
        rename(retired, name)

    @shard_atomic("row")
    def in_the_middle(row: int) -> None:
        tried.append(True)
        transaction.on_commit(lambda: said.append(len(tried)), using=using)
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
        if len(tried) == 1:
            rename(name, retired)
            undone.start()
        with transaction.atomic(using=using):
            models().Photo.objects.create(owner_id=row, caption="once")

    undone = threading.Thread(target=undo, args=[known.asked_at])
    in_the_middle(ann.pk)
    undone.join()
    assert (len(tried), said) == (2, [2]), "ShardMoved came through both atomic()"
    assert ann.photos.count() == 1


def test_databases_have_the_tables_of_their_own_models() -> None:
    from django.apps import apps
    from django.core.management import call_command
    from django.db import NotSupportedError, connections

    tables = set(connections["default"].introspection.table_names())
    assert {"auth_user", "django_session"} <= tables
    assert not [name for name in tables if name.startswith("photos_")]
    shard = set(connections["shard_0002"].introspection.table_names())
    own = {one._meta.db_table for one in apps.get_app_config("photos").get_models()}
    assert shard == own
    with pytest.raises(NotSupportedError, match="shardmigrations"):
        call_command("migrate", database="shard_0002", verbosity=0)
    call_command("check", fail_level="WARNING")


def migrate(folder: Path, more: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write migrations of Django's into a package, and SQL from them; give the files' names."""
    from django.core.management import call_command
    from django.test import override_settings

    package = f"m{folder.name.replace('-', '_')}"
    (folder / package).mkdir(exist_ok=True)
    (folder / "sql").mkdir(exist_ok=True)
    own = Path(str(import_module(f"{MIGRATIONS}.0001_initial").__file__)).read_text()
    more = {"0001_initial": own, "__init__": "", **more}
    for name, text in more.items():
        (folder / package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    with override_settings(MIGRATION_MODULES={"photos": package}):
        call_command("shardmigrations", "photos", folder=folder / "sql", verbosity=0)
    return sorted(one.name for one in (folder / "sql").iterdir())


def test_migrations_of_django_become_files_for_shardctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql/0007_by_hand.sql").write_text("SELECT 1;\n")
    (tmp_path / "sql/0008_photos_0001_initial.sql").write_text("-- my own\n")
    assert migrate(tmp_path, LATER, monkeypatch) == [
        "0007_by_hand.sql",
        "0008_photos_0001_initial.sql",
        "0009_photos_0002_rename.sql",
        "0010_photos_0003_index.sql",
    ]
    assert (tmp_path / "sql/0008_photos_0001_initial.sql").read_text() == "-- my own\n"
    *_, renamed, index = migrations.read(tmp_path / "sql")
    assert (renamed.transactional, index.transactional) == (True, False)
    assert [(one.table, one.column, one.check) for one in keys.lines(renamed)] == [
        ("notes", "Subject", False)
    ]
    assert "SET place = '50 %';" in renamed.text
    assert 'CREATE INDEX CONCURRENTLY IF NOT EXISTS "by_views"' in index.text


@pytest.mark.parametrize("said", REFUSED)
def test_a_migration_that_is_no_sql_is_refused_by_name(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import CommandError

    text = LATER["0003_index"].replace("0002_rename", "0001_initial").replace("atomic = False", "")
    body = re.sub(r"operations = .*", f"operations = [{REFUSED[said]}]", text, flags=re.DOTALL)
    with pytest.raises(CommandError, match=f"photos.0002_odd: .*({said})"):
        migrate(tmp_path, {"0002_odd": body}, monkeypatch)
    assert len(list((tmp_path / "sql").iterdir())) == 1


def test_checks_find_models_that_no_shard_can_hold() -> None:
    from django.contrib.auth.models import User
    from django.db.models import (
        CASCADE,
        BigIntegerField,
        ForeignKey,
        Manager,
        ManyToManyField,
        Model,
    )
    from django.test.utils import isolate_apps

    from shardctl.contrib.django import ShardedModel

    photo = models().Photo
    with isolate_apps("tests.fixtures.django_photos"):

        class Keyless(ShardedModel):
            shard_key = "nothing"

            class Meta:
                app_label = "photos"

        class Odd(ShardedModel):
            shard_key = "key"
            key = BigIntegerField(unique=True)
            other = BigIntegerField(unique=True)
            user = ForeignKey(User, CASCADE)
            photos = ManyToManyField(photo)
            objects = Manager()

            class Meta:
                app_label = "photos"

        class Child(ShardedModel):
            shard_key = "key"
            key = BigIntegerField()
            odd = ForeignKey(Odd, CASCADE, to_field="other")

            class Meta:
                app_label = "photos"

        class Outside(Model):  # noqa: DJ008
            one = ForeignKey(photo, CASCADE)

            class Meta:
                app_label = "photos"

        found = {one.id for model in (Keyless, Odd, Child, photo) for one in model.check()}
    assert {f"shardctl.E00{n}" for n in range(1, 6)} <= found
    assert not [one for one in photo.check() if one.is_serious()]


def test_the_admin_asks_for_the_key() -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    User.objects.create_superuser("root", password="x")  # noqa: S106
    ann, bob = member(5), member(7)
    photo = ann.photos.create(caption="dusk")
    bob.photos.create(caption="of bob")
    client, base = Client(raise_request_exception=True), "/admin/photos/photo/"
    assert client.get(base)["Location"].startswith("/admin/login/")
    assert client.login(username="root", password="x")  # noqa: S106
    asked = client.get(base, {"_popup": "1"}).content.decode()
    assert 'name="owner_id"' in asked
    assert "dusk" not in asked
    for wrong in ("x", "-5"):
        assert "errornote" in client.get(base, {"owner_id": wrong}).content.decode()
    listed = client.get(base, {"owner_id": ann.pk}).content.decode()
    assert "dusk" in listed
    assert "of bob" not in listed
    photo.likes.create(member=bob)
    assert "dusk" in client.get("/admin/photos/like/", {"member_id": bob.pk}).content.decode()
    data = {"caption": "dawn", "views": 1, "details": '{"a": 1}', "reviewer": "", "owner": ann.pk}
    saved = client.post(f"{base}{photo.pk}/change/?_changelist_filters=owner_id%3D{ann.pk}", data)
    assert (saved.status_code, saved["Location"]) == (302, f"{base}?owner_id={ann.pk}")
    assert client.post(f"{base}add/?owner_id={ann.pk}", {**data, "caption": "x"}).status_code == 302
    assert captions(ann) == {"dawn", "x"}
    assert client.post(f"{base}{photo.pk}/delete/", {"post": "yes"}).status_code == 302
    chosen = {"action": "delete_selected", "_selected_action": [ann.photos.get().pk], "post": "yes"}
    assert client.post(f"{base}?owner_id={ann.pk}", chosen).status_code == 302
    assert captions(ann) == set()
    assert captions(bob) == {"of bob"}


def test_tests_of_django_begin_with_empty_shards() -> None:
    from django.db import connections
    from django.test import SimpleTestCase, TestCase, TransactionTestCase

    from shardctl.contrib.django import ShardedRunner, database, fleet

    class Body:
        there: Any = ()

        def test_a(self) -> None:
            self.check()

        test_b = test_a

        def check(self) -> None:
            found = models().Note.objects.for_keys(["here", *map(str, range(9))]).merge()
            assert [one.topic for one in found] == list(self.there)
            models().Note.objects.create(topic="3", text="")

    class RollsBack(Body, TestCase):
        @classmethod
        def setUpTestData(cls) -> None:
            models().Note.objects.create(topic="here", text="")

        def check(self) -> None:
            self.there = ["here"]
            super().check()
            assert sum(bool(connections[alias].connection.lent) for alias in fleet.aliases()) == 2

    class Commits(Body, TransactionTestCase):
        def check(self) -> None:
            super().check()
            assert len(database().scatter("topic", "photos_note", limit=9)) == 1

    class Without(SimpleTestCase):
        def test_it(self) -> None:
            with pytest.raises(AssertionError, match="allowed"):
                models().Note.objects.get(topic="here")

    load: Any = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(map(load, (RollsBack, Commits, Without)))
    assert "shard_0000" in ShardedRunner().get_databases(suite)
    result = unittest.TestResult()
    suite.run(result)
    assert (result.testsRun, result.errors, result.failures) == (5, [], [])
    assert database().scatter("topic", "photos_note", limit=1) == []
