"""Alembic's revisions as numbered migrations, on real shards."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, text
from sqlalchemy.exc import InternalError

from shardctl.router import ShardedDatabase

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet

ENV = """
from alembic import context
from shardctl.contrib.alembic import environment
environment(**context.config.attributes)
"""
REVISION = '''
"""{doc}"""
import sqlalchemy as sa
from alembic import op
revision, down_revision = {name!r}, {before!r}
def upgrade():
    {body}
def downgrade():
    op.drop_table("photos")
'''
PHOTOS = """op.create_table(
        "photos",
        sa.Column("id", sa.BigInteger, server_default=sa.text("next_id()"), primary_key=True),
        sa.Column("user_id", sa.BigInteger, nullable=False),
        sa.Column("caption", sa.Text, server_default="100 %; done"),
    )"""
INDEX = """with op.get_context().autocommit_block():
        op.create_index("by_user", "photos", ["user_id"], postgresql_concurrently=True)"""


class Revisions:
    """A folder of Alembic's, and the folder of migrations that it is written into."""

    def __init__(self, directory: Path) -> None:
        self.migrations = directory / "migrations"
        self.migrations.mkdir(exist_ok=True)
        (directory / "env.py").write_text(ENV)
        (directory / "script.py.mako").write_text(
            '"""${message}"""\nimport sqlalchemy as sa\nfrom alembic import op\n'
            "revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}\n"
            "def upgrade():\n    ${upgrades}\ndef downgrade():\n    ${downgrades}\n"
        )
        self.versions = directory / "versions"
        self.versions.mkdir()
        self.said = io.StringIO()
        self.config = Config(stdout=self.said)
        self.config.set_main_option("script_location", str(directory))
        self.config.attributes.update(metadata=MetaData(), migrations=self.migrations)
        self.names: list[str] = []

    def add(self, doc: str, body: str) -> str:
        name = f"r{len(self.names) + 1}"
        made = REVISION.format(
            doc=doc, name=name, before=self.names[-1] if self.names else None, body=body
        )
        (self.versions / f"{name}.py").write_text(made)
        self.names.append(name)
        return name

    def write(self) -> dict[str, str]:
        """Write migrations; give the text of each file."""
        command.upgrade(self.config, "head", sql=True)
        return {file.name: file.read_text() for file in sorted(self.migrations.iterdir())}


@pytest.fixture
def revisions(tmp_path: Path) -> Revisions:
    return Revisions(tmp_path)


def test_each_revision_is_a_file_that_is_written_once(revisions: Revisions) -> None:
    Table("photos", revisions.config.attributes["metadata"], info={"shard_key": "user_id"})
    (revisions.migrations / "0007_by_hand.sql").write_text("SELECT 1;\n")
    revisions.add("Photos\nof users!", PHOTOS)
    revisions.add("nothing", "pass")
    revisions.add("by user", INDEX)
    files = revisions.write()
    assert list(files) == ["0007_by_hand.sql", "0008_photos_of_users.sql", "0009_by_user.sql"]
    head = "-- Photos of users!\n-- alembic: r1\n-- shardctl: key photos.user_id check\n\n"
    head += "CREATE TABLE "
    assert files["0008_photos_of_users.sql"].startswith(head)
    assert "DEFAULT '100 %; done'" in files["0008_photos_of_users.sql"]
    assert files["0009_by_user.sql"] == (
        "-- shardctl: no-transaction\n-- by user\n-- alembic: r3\n\n"
        "CREATE INDEX CONCURRENTLY by_user ON photos (user_id);\n"
    )
    assert revisions.write() == files


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('op.get_bind().execute(sa.text("SELECT 1")).fetchall()', "NoneType"),
        ('op.create_table("x", sa.Column("y", sa.Text), schema="audit")', "schema 'audit'"),
        (INDEX + '\n    op.execute("SELECT 1")', "needs a revision of its own"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(
    revisions: Revisions, body: str, why: str
) -> None:
    revisions.add("fine", PHOTOS)
    name = revisions.add("not for shards", body)
    refused = rf"revision {name} \(not for shards\) cannot be a migration of shards: .*{why}"
    with pytest.raises(CommandError, match=refused):
        revisions.write()
    assert [file.name for file in revisions.migrations.iterdir()] == ["0001_fine.sql"]


def test_models_are_compared_with_a_shard(new_fleet: Fleet) -> None:
    new_fleet.migration("0001_photos.sql", "SELECT 1;")
    revisions = Revisions(new_fleet.directory)
    revisions.add("photos", PHOTOS)
    revisions.add("by user", INDEX)
    attributes: dict[str, Any] = revisions.config.attributes
    with pytest.raises(CommandError, match="revision r1 has no file yet"):
        command.upgrade(revisions.config, "head")
    revisions.write()
    new_fleet.init()
    Table(
        "photos",
        attributes["metadata"],
        Column("id", BigInteger, server_default=text("next_id()"), primary_key=True),
        Column("user_id", BigInteger, nullable=False, index=False),
        Column("caption", Text),
        Column("likes", Integer),
    )
    with ShardedDatabase(new_fleet.topology()) as db:
        attributes["db"] = db
        command.revision(revisions.config, "count likes", autogenerate=True)
        made = revisions.write()["0004_count_likes.sql"]
        assert "ALTER TABLE photos ADD COLUMN likes INTEGER;\n\nDROP INDEX by_user;\n" in made
        with pytest.raises(InternalError, match="read-only transaction"):
            command.downgrade(revisions.config, "r1")
    new_fleet.init()
    assert new_fleet.query("b", "SELECT likes FROM shard5.photos") == []
    assert new_fleet.query("b", "SELECT to_regclass('shard5.by_user')") == [(None,)]
