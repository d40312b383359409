"""Write numbered SQL for `shardctl migrate` from Django's migrations of sharded models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import NotSupportedError, connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RenameModel, RunPython, SeparateDatabaseAndState

from shardctl.contrib.django import fleet
from shardctl.contrib.django.backend.base import DatabaseWrapper
from shardctl.contrib.django.models import ShardedManager
from shardctl.contrib.django.routing import SQL_ALIAS
from shardctl.topology import loader as topologies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NUMBER = re.compile(r"(\d{4,})_.*\.sql")


class Command(BaseCommand):
    """`manage.py shardmigrations APP`."""

    help = "Writes SQL files for `shardctl migrate` from the migrations of an application's models."

    def add_arguments(self, parser: Any) -> None:
        """Take the applications."""
        parser.add_argument("app_label", nargs="+")
        parser.add_argument(
            "--folder", type=Path, help="instead of `database.migrations` of the topology"
        )

    def handle(self, *_: Any, app_label: list[str], **options: Any) -> None:
        """Write a file for each migration that has none; existing ones stay as they are."""
        folder: Path = options["folder"] or _folder()
        if not folder.is_dir():
            raise CommandError(f"{folder}: no such folder: create it")
        graph = MigrationLoader(None, ignore_no_migrations=True).graph
        plan = dict.fromkeys(
            node
            for label in app_label
            for leaf in graph.leaf_nodes(label)
            for node in graph.forwards_plan(leaf)
        )
        if unknown := set(app_label) - {label for label, _ in graph.nodes}:
            raise CommandError(f"no migrations of {', '.join(sorted(unknown))}")
        for label, name in plan:
            migration = graph.nodes[label, name]
            written = {file.name.partition("_")[2] for file in folder.glob("*.sql")}
            replaced = {f"{one}_{other}.sql" in written for one, other in migration.replaces}
            if label not in app_label or f"{label}_{name}.sql" in written or replaced == {True}:
                continue
            if True in replaced:
                raise CommandError(f"{label}.{name}: only some of what it replaces has files")
            text = _text(migration, graph.make_state((label, name), at_end=False))
            if text is not None:
                numbers = [
                    int(m[1]) for file in folder.iterdir() if (m := NUMBER.fullmatch(file.name))
                ]
                file = folder / f"{max(numbers, default=0) + 1:04d}_{label}_{name}.sql"
                with file.open("x", encoding="utf-8") as opened:
                    opened.write(text)
                if options["verbosity"]:
                    self.stdout.write(str(file))


def _folder() -> Path:
    topology = fleet.entry()["OPTIONS"]["topology"]
    folder = topologies.load(Path(topology)).database.migrations
    if folder is None:
        raise CommandError(f"{topology}: set `database: {{migrations: migrations/}}`")
    return folder


def _text(migration: Any, state: Any) -> str | None:
    """Give a migration's SQL for shards; None where it is about none."""
    where = f"{migration.app_label}.{migration.name}"
    wrapper = DatabaseWrapper(fleet.entry(), SQL_ALIAS)
    for operation in _flat(migration.operations):
        if isinstance(operation, RunPython) and router.allow_migrate(
            SQL_ALIAS, migration.app_label, **operation.hints
        ):
            raise CommandError(
                f"{where}: RunPython has no SQL: write what it does as a file of migrations/ by "
                "hand, or let it be of no shard with hints={'sharded': False}"
            )
    before = _keys(state)
    connections[SQL_ALIAS] = wrapper  # operations ask Django for it by its name
    try:
        with wrapper.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
            state = migration.apply(state, editor, collect_sql=True)
    except (NotSupportedError, ValueError) as error:
        raise CommandError(f"{where}: {error}") from error
    finally:
        wrapper.close()
        del connections[SQL_ALIAS]
    lines = list(_key_lines(before, _keys(state), migration))
    statements = [one for one in editor.collected_sql if not one.startswith("--")]
    if not statements and not lines:
        return None
    head = [] if migration.atomic else ["-- shardctl: no-transaction"]
    head.append(f"-- {where}, by manage.py shardmigrations")
    return "\n".join([*head, *lines, "", *editor.collected_sql]) + "\n"


def _keys(state: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """Give the table and the key's column of each sharded model."""
    found = {}
    for model in state.apps.get_models(include_auto_created=True):
        for manager in model._meta.managers:
            if isinstance(manager, ShardedManager) and model._meta.managed:
                named = model._meta.app_label, model._meta.model_name
                for field in model._meta.local_fields:  # else the table of a parent has it
                    if manager.shard_key in {field.name, field.attname}:
                        found[named] = model._meta.db_table, field.column
    return found


def _key_lines(
    before: dict[tuple[str, str], tuple[str, str]],
    after: dict[tuple[str, str], tuple[str, str]],
    migration: Any,
) -> Iterator[str]:
    """Write the keys of tables, by which each shard refuses rows of others."""
    label = migration.app_label
    was = {
        (label, one.new_name_lower): (label, one.old_name_lower)
        for one in migration.operations
        if isinstance(one, RenameModel)
    }
    for model, key in after.items():
        old = before.get(was.get(model, model))
        if old is None:
            yield f"-- shardctl: key {_quoted(key)} check"
        elif old != key:
            yield f"-- shardctl: key {_quoted(key)}"  # its constraint is renamed with it


def _quoted(names: tuple[str, str]) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _flat(operations: Iterable[Any]) -> Iterator[Any]:
    for one in operations:
        if isinstance(one, SeparateDatabaseAndState):
            yield from _flat(one.database_operations)
        else:
            yield one
