"""Models whose rows are in shards: a row is in the shard of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.core import checks
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, models
from django.db.models.expressions import Col, ColPairs
from django.db.models.lookups import Exact, In
from django.db.models.query import prefetch_related_objects
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.where import NothingNode
from django.utils.asyncio import async_unsafe

from shardctl.contrib.django import fleet, merging
from shardctl.contrib.django.errors import KeyChanged, NoShardKey, SeveralShards
from shardctl.contrib.django.routing import current, evenly, is_sharded, of_instance, use_alias
from shardctl.errors import Misused
from shardctl.ids.layout import IdOutOfRange
from shardctl.router.errors import id_given
from shardctl.topology.routes import ShardNotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.topology.keys import Key


class ShardedId(models.BigAutoField):
    """A primary key that the row's shard makes: its default there is `next_id()`."""

    __module__ = "shardctl.contrib.django"  # as migrations name it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["primary_key"] = True
        super().__init__(*args, **kwargs)

    def db_type_suffix(self, connection: Any) -> str:  # noqa: ARG002
        """Give what CREATE TABLE has after the type."""
        return "DEFAULT next_id()"


class ShardedQuery(Query):
    """What a query set asks, where rows that it refers to have to be of one shard."""

    def add_q(self, q_object: Any, reuse_all: bool = False) -> None:
        """Add a condition; raises SeveralShards.

        Such as `prefetch_related` adds one, for rows of which Django takes the first one's shard.
        """
        for value in q_object.flatten():
            if isinstance(value, list | tuple | set):
                aliases = {one._state.db for one in value if isinstance(one, ShardedModel)}
                if len(aliases) > 1:
                    raise SeveralShards(self.model.__name__, "the rows that it refers to")
        super().add_q(q_object, reuse_all)

    def get_compiler(
        self, using: str | None = None, connection: Any = None, elide_empty: bool = True
    ) -> Any:
        """Give what writes its SELECT, also as a part of another one."""
        return _Compiler(self, connections[using] if using else connection, using, elide_empty)


class _Compiler(SQLCompiler):
    """Writes a SELECT, whose tables and keys are known by now, also those of select_related."""

    def get_from_clause(self) -> Any:
        """Give its tables; raises SeveralShards."""
        require_here(self.query, self.connection.alias)
        return super().get_from_clause()


class ShardedQuerySet(models.QuerySet[Any]):
    """Queries that find their shard by the key that they name."""

    _keys: Sequence[Any] | None = None

    def __init__(self, model: Any = None, query: Any = None, **named: Any) -> None:
        super().__init__(model, query or ShardedQuery(model), **named)

    @property
    def db(self) -> str:
        """Name the alias that is asked; raises NoShardKey, SeveralShards."""
        name = self.model.__name__
        if self._keys is not None:
            raise SeveralShards(name, "the rows of for_keys()")
        found = named(self.query)
        if found is not None and len(found) <= 1:
            return next(iter(found), fleet.alias_of(0))  # without a key there are no rows
        if fleet.is_shard(self._db):
            return str(self._db)
        if found:
            raise SeveralShards(name, "the keys of the filter")
        alias = of_instance(self.model, self._hints.get("instance")) or current()
        if alias is None:
            raise NoShardKey(name, self.model.shard_key)
        return alias

    def for_key(self, key: Key) -> Self:
        """Give the rows of a key, in its shard."""
        return self.filter(**{self.model.shard_key: key})

    def for_keys(self, keys: Iterable[Key]) -> Self:
        """Give the rows of some keys, of whichever shards; `merge` reads them."""
        found = self._chain()
        found._keys = list(keys)
        return found

    @async_unsafe
    def merge(
        self, order_by: str | Sequence[str] | None = None, limit: int | None = None, **more: Any
    ) -> list[Any]:
        """Read rows of the keys of `for_keys`: one statement a node, in one order.

        `order_by` are names of fields, with a minus sign in front for descending order; `more` are
        `limit_per_key` and `timeout`, as of `select_keys`. Open transactions of this thread see
        what they have changed. Raises OrderUnsupported, DeadlinePassed, NotSupportedError.
        """
        if self._keys is None:
            raise NoShardKey(self.model.__name__, self.model.shard_key)
        found = merging.read(self, self._keys, order_by=order_by, limit=limit, **more)
        if self._prefetch_related_lookups:
            of_shard: dict[str, list[Any]] = {}
            for row in found:
                of_shard.setdefault(row._state.db, []).append(row)
            for rows in of_shard.values():
                prefetch_related_objects(rows, *self._prefetch_related_lookups)
        return found

    async def amerge(self, *given: Any, **named: Any) -> list[Any]:
        """Read the same from asynchronous code."""
        return await sync_to_async(self.merge)(*given, **named)

    def create(self, **kwargs: Any) -> Any:
        """Write a row into the shard of its key."""
        row = self.model(**kwargs)
        row.save(force_insert=True, using=self._db)
        return row

    def get_or_create(self, defaults: Any = None, **kwargs: Any) -> tuple[Any, bool]:
        """Get a row, or write it; the shard is that of the filter."""
        there = self.using(self.filter(**kwargs).db)
        return super(ShardedQuerySet, there).get_or_create(defaults, **kwargs)

    def update_or_create(
        self, defaults: Any = None, create_defaults: Any = None, **kwargs: Any
    ) -> tuple[Any, bool]:
        """Change a row, or write it; the shard is that of the filter."""
        there = self.using(self.filter(**kwargs).db)
        return super(ShardedQuerySet, there).update_or_create(defaults, create_defaults, **kwargs)

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Write rows into their shards: a transaction for each shard, one after the other."""
        rows = list(objs)
        for alias, some in self._by_shard(rows).items():
            super(ShardedQuerySet, self.using(alias)).bulk_create(some, *args, **kwargs)
            for row in some:
                row._state.shard_key = row.key_value()
        return rows

    def bulk_update(
        self, objs: Iterable[Any], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Change rows in their shards: a transaction for each shard, one after the other."""
        listed = list(fields)
        self._refuse_key(listed)
        return sum(
            super(ShardedQuerySet, self.using(alias)).bulk_update(some, listed, batch_size)
            for alias, some in self._by_shard(list(objs)).items()
        )

    def update(self, **kwargs: Any) -> int:
        """Change rows; raises KeyChanged, SeveralShards."""
        self._refuse_key(kwargs)
        require_here(self.query, self.db)
        return super().update(**kwargs)

    def _raw_delete(self, using: str) -> Any:
        require_here(self.query, using)
        return super()._raw_delete(using)

    def _refuse_key(self, fields: Collection[str]) -> None:
        key = self.model.key_field()
        if {key.name, key.attname} & set(fields):
            raise KeyChanged(self.model.__name__, key.attname)

    def _by_shard(self, rows: Sequence[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for row in rows:
            found.setdefault(row.alias_to_save(self._db), []).append(row)
        return found

    def _clone(self) -> Self:
        found = super()._clone()
        found._keys = self._keys
        return found


class ShardedManager(models.Manager.from_queryset(ShardedQuerySet)):  # type: ignore[misc]
    """The manager of a sharded model, which migrations know it by."""

    __module__ = "shardctl.contrib.django"  # as migrations name it
    use_in_migrations = True

    def __init__(self, shard_key: str | None = None) -> None:
        super().__init__()
        self._shard_key = shard_key

    @property
    def shard_key(self) -> str | None:
        """Name the key's field; of a model of a migration's state, too."""
        return self._shard_key or getattr(self.model, "shard_key", None)

    def deconstruct(self) -> Any:
        """Give migrations the name of the key."""
        return (*super().deconstruct()[:3], (self.shard_key,), {})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.shard_key == self.shard_key

    def __hash__(self) -> int:
        return id(self)


class ShardedModel(models.Model):
    """A model whose rows are in shards, each in that of its `shard_key`."""

    shard_key: str
    """The name of the field that decides the shard: an integer, a text or a UUID."""

    objects = ShardedManager()

    class Meta:
        """No table of its own."""

        abstract = True
        # Also what Django itself asks for, such as `like.photo`, finds its shard.
        base_manager_name = "objects"

    @classmethod
    def key_field(cls) -> Any:
        """Give the field of the shard key."""
        return cls._meta.get_field(cls.shard_key)

    def key_value(self) -> Any:
        """Give the row's shard key: None where it has none yet, or it was not loaded."""
        return self.__dict__.get(self.key_field().attname)

    def shard_alias(self) -> str | None:
        """Name the alias of the row's shard: where it was read, or that of its key."""
        if not self._state.adding and fleet.is_shard(self._state.db):
            return self._state.db
        key = self.key_value()
        return None if key is None else fleet.shard_alias(key)

    def alias_to_save(self, using: str | None) -> str:
        """Name the alias of the shard that the row belongs to.

        Raises NoShardKey, KeyChanged, and id_given where its id is of another shard than its key.
        """
        key, field = self.key_value(), self.key_field()
        if not self._state.adding:
            saved = getattr(self._state, "shard_key", None)
            if key is None and field.attname not in self.__dict__:
                return str(self._state.db)
            if saved is not None and field.to_python(key) != saved:
                raise KeyChanged(type(self).__name__, field.attname)
        if key is not None:
            alias = fleet.shard_alias(field.to_python(key))
            if (
                not self._state.adding
                and fleet.is_shard(self._state.db)
                and alias != self._state.db
            ):
                raise KeyChanged(type(self).__name__, field.attname)
            if self.pk is not None and _shards(self._meta.pk, [self.pk]) not in {
                None,
                frozenset({alias}),
            }:
                raise id_given(self._meta.pk.name)
            return alias
        if isinstance(field, ShardedId):
            given = using if fleet.is_shard(using) else current()
            return given or fleet.alias_of(evenly())
        raise NoShardKey(type(self).__name__, field.attname)

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any]) -> Self:
        """Make an instance of a row, and know its key."""
        row = super().from_db(db, field_names, values)
        row._state.shard_key = row.key_value()
        return row

    def save_base(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        """Write the row into the shard of its key, whatever `using` says."""
        super().save_base(*args, using=self.alias_to_save(using), **kwargs)
        self._state.shard_key = self.key_value()

    def _perform_unique_checks(self, unique_checks: Any) -> Any:
        with use_alias(self.shard_alias()):  # where the constraint is
            return super()._perform_unique_checks(unique_checks)

    @classmethod
    def check(cls, **kwargs: Any) -> list[checks.CheckMessage]:
        """Find what no shard can hold, for `manage.py check`."""
        return [*super().check(**kwargs), *_problems(cls)]


def _problems(model: type[ShardedModel]) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    try:
        model.key_field()
    except (AttributeError, FieldDoesNotExist):
        text = "shard_key has to name a field of the model"
        return [checks.Error(text, obj=model, id="shardctl.E001")]
    if not all(isinstance(o, ShardedManager) for o in (*model._meta.managers, model._base_manager)):
        text = "managers of a sharded model have to be a ShardedManager, also its base manager"
        hint = "let ShardedModel be the first of its bases"
        found.append(checks.Error(text, hint=hint, obj=model, id="shardctl.E002"))
    found += [
        checks.Error(
            "a relation of many to many needs a through= that is a ShardedModel",
            obj=field,
            id="shardctl.E003",
        )
        for field in model._meta.local_many_to_many
        if not is_sharded(field.remote_field.through)
    ]
    relations = [
        *(f for f in model._meta.local_fields if f.remote_field),
        *(r.field for r in model._meta.related_objects if not r.many_to_many),
    ]
    for field in relations:
        if is_sharded(field.model) and is_sharded(field.remote_field.model):
            target = field.target_field
            if not isinstance(target, ShardedId) and target != target.model.key_field():
                text = "a foreign key to a sharded model has to refer to its ShardedId or its key"
                found.append(checks.Error(text, obj=field, id="shardctl.E005"))
            continue
        if field.db_constraint or field.remote_field.on_delete is not models.DO_NOTHING:
            text = "a foreign key between a shard and another database cannot be checked there"
            hint = "set db_constraint=False and on_delete=models.DO_NOTHING"
            found.append(checks.Error(text, hint=hint, obj=field, id="shardctl.E004"))
    return found


def require_here(query: Any, alias: str) -> None:
    """Refuse a SELECT that joins rows, or names keys, of other shards; raises SeveralShards."""
    for table, joined in query.alias_map.items():
        if query.alias_refcount[table] and joined.parent_alias is not None:
            field = getattr(joined.join_field, "field", joined.join_field)
            if not getattr(field, "db_constraint", True):
                raise SeveralShards(query.model.__name__, f"its rows and those of {field.name}")
    if (named(query) or {alias}) != {alias}:
        raise SeveralShards(query.model.__name__, "the keys of a subquery")


def named(query: Any) -> frozenset[str] | None:
    """Name the shards of the keys that a query names; None where it may be about any."""
    if query.combined_queries:
        return _union([named(one) for one in query.combined_queries])
    return _of_node(query.where)


def _of_node(node: Any) -> frozenset[str] | None:
    if isinstance(node, (Exact, In)):
        return _of_lookup(node)
    if isinstance(node, NothingNode):
        return frozenset()
    if getattr(node, "negated", True) or node.connector not in {"AND", "OR"}:
        return None
    parts = [_of_node(child) for child in node.children]
    if node.connector == "AND":
        known = [part for part in parts if part is not None]
        return known[0].intersection(*known) if known else None
    return _union(parts) if parts else None


def _union(parts: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None


def _of_lookup(lookup: Any) -> frozenset[str] | None:
    """Name the shards of `key = value`, `key IN (values)`, and the same of ids."""
    column, given = lookup.lhs, lookup.rhs
    if hasattr(given, "resolve_expression"):
        return None
    values = given if isinstance(lookup, In) else (given,)
    if type(column) is Col:
        field = column.target
    elif isinstance(column, ColPairs) and len(column.targets) == 1:  # as prefetch_related has it
        (field,), values = column.targets, [one for (one,) in values]
    else:
        return None
    return _shards(field, values)


def _shards(field: Any, values: Iterable[Any]) -> frozenset[str] | None:
    """Name the shards of keys or ids; none of a number that no row of the fleet can have."""
    while not _is_key(field) and getattr(field, "db_constraint", False):
        field = field.target_field  # which is in the same shard
    if not _is_key(field) and not isinstance(field, ShardedId):
        return None
    alias_for: Any = fleet.shard_alias if _is_key(field) else fleet.alias_for_id
    found = set()
    for value in values:
        try:
            if value is not None:
                found.add(alias_for(value))
        except (IdOutOfRange, ShardNotFound):
            pass
        except Misused as error:
            if error.code != "key_not_an_id":
                raise
    return frozenset(found)


def _is_key(field: Any) -> bool:
    return is_sharded(field.model) and field is field.model.key_field()
