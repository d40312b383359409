"""The file's shape: its keys, what they mean and their defaults. The JSON Schema is made of it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from shardctl.topology import fields, names, ranges

NO_PASSWORDS = "the topology cannot contain passwords; use a passfile (~/.pgpass, PGPASSFILE)"
NO_SECRETS = (
    "the topology cannot contain secrets; use a service file (~/.pg_service.conf, with "
    "`service: NAME` here)"
)

ELSEWHERE = frozenset({"host", "hostaddr", "port", "dbname", "user"})
"""Keywords of libpq for which a node, or the database, has a key."""
SECRETS = frozenset({"oauth_client_secret", "scram_client_key", "scram_server_key"})
# Server parameters that speak of passwords and hold none.
_HARMLESS = re.compile(
    r"password_encryption|md5_password_warnings|passwordcheck\..*", re.IGNORECASE
)
ASSIGNED = re.compile(r"password\s*=", re.IGNORECASE)
"""What a value has that has a password within, such as `host=a password=...`."""


def asks_password(key: str) -> bool:
    """Return whether the value of a key would be a password.

    >>> asks_password("sslpassword"), asks_password("passfile"), asks_password("PGPASSWORD")
    (True, False, True)
    """
    return "password" in key.lower() and not _HARMLESS.fullmatch(key)


_NAMES: Any = {"propertyNames": {"pattern": fields.HANDLE_PATTERN}}
_SCALAR = {"type": ["string", "number", "boolean"]}


def _plain(read: Any, schema: dict[str, Any]) -> tuple[Any, Any]:
    return PlainValidator(read), WithJsonSchema(schema)


Text = Annotated[str, *_plain(fields.text, {"type": "string", "minLength": 1})]
_NAME = {"type": "string", "minLength": 1, "maxLength": 63}
_DATABASE = _NAME | {"not": {"pattern": "^template[01]$"}}
Name = Annotated[str, *_plain(fields.name, _NAME)]
DatabaseName = Annotated[str, *_plain(fields.database_name, _DATABASE)]
Host = Annotated[str, *_plain(fields.host, {"type": "string", "pattern": fields.HOST_PATTERN})]
Login = Annotated[str, *_plain(fields.login, {"type": "string", "pattern": fields.LOGIN_PATTERN})]
Port = Annotated[int, *_plain(fields.port, {"type": "integer", "minimum": 1, "maximum": 65535})]
Bits = Annotated[int, *_plain(fields.bits, {"type": "integer", "minimum": 1, "maximum": 62})]
_COUNT = {"type": "integer", "minimum": 1, "maximum": fields.MAX_SHARDS}
Count = Annotated[int, *_plain(fields.count, _COUNT)]
LocalPath = Annotated[str, *_plain(fields.path, {"type": "string", "pattern": "^[^~]"})]
_DURATION = {"type": "string", "pattern": fields.DURATION_PATTERN}
Duration = Annotated[timedelta, *_plain(fields.duration, _DURATION)]
PositiveDuration = Annotated[timedelta, *_plain(fields.positive_duration, _DURATION)]
Size = Annotated[int, *_plain(fields.size, {"type": "string", "pattern": fields.SIZE_PATTERN})]
_EPOCH = {"type": "string", "pattern": fields.EPOCH_PATTERN}
_PATTERN = {"type": "string", "pattern": r"\{id(:0[0-9]{1,2}d)?\}"}
_SHARDS = {"type": ["string", "integer"], "pattern": fields.SHARDS_PATTERN, "minimum": 0}
Epoch = Annotated[int, *_plain(fields.epoch, _EPOCH)]
Pattern = Annotated[names.SchemaPattern, *_plain(fields.schema_pattern, _PATTERN)]
Shards = Annotated[tuple[ranges.Range, ...], *_plain(fields.shard_ranges, _SHARDS)]
Setting = Annotated[str, *_plain(fields.setting, _SCALAR)]


def _written(default: str) -> Any:
    """Give a default as the file would; it is read like a value, and shown so in the schema."""
    return default


def _optional(description: str) -> Any:
    """Describe a key that may be left out, and has no value then."""
    return Field(default=None, description=description)


class Section(BaseModel):
    """A mapping with known keys; an optional key without a value counts as left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {f.alias or n for n, f in cls.model_fields.items() if not f.is_required()}
        return {k: v for k, v in data.items() if v is not None or k not in optional}


class ShardsSection(Section):
    """The shards of the cluster."""

    count: Count = Field(description="the number of shards, fixed for the life of the cluster")
    pattern: Pattern = Field(
        default=_written("shard{id}"),
        alias="schema",
        description="the schema name of a shard; {id:04d} pads with zeros",
    )
    key: Literal["modulo", "id"] = Field(
        default="modulo",
        description="how an integer key names its shard: modulo takes the remainder of its "
        "division by count; id takes the key as an id, and the shard from its bits",
    )


class BitsSection(Section):
    """How the 64 bits of an id are split."""

    time: Bits = Field(default=41, description="bits of ticks since the epoch")
    shard: Bits = Field(default=13, description="bits of the shard's number")
    sequence: Bits = Field(default=10, description="bits of the sequence")


class IdSection(Section):
    """How ids are made."""

    epoch: Epoch = Field(
        default=_written("2011-08-24T21:07:01.721Z"),
        description="the start of the ids' time; UTC if it has no zone",
    )
    bits: BitsSection = Field(
        default_factory=BitsSection, description="how the 64 bits of an id are divided"
    )
    tick: PositiveDuration = Field(
        default=_written("1ms"), description="the unit of an id's time, in whole milliseconds"
    )
    generator: Literal["strict", "classic"] = Field(
        default="strict",
        description="strict never repeats an id; classic uses the published arithmetic",
    )


class DatabaseSection(Section):
    """The one database of the cluster, and its roles."""

    name: DatabaseName = Field(description="the database, the same on every node")
    user: Name = Field(default="postgres", description="the role that shardctl logs in as")
    app_roles: list[Name] = Field(
        default=[], description="the roles that may read and write the shards"
    )
    replication_user: Name | None = _optional(
        "the role of replication connections; database.user by default"
    )
    migrations: LocalPath | None = _optional(
        "the folder of numbered SQL migrations, which run in every shard"
    )
    keys: dict[str, Name] = Field(
        default={}, description="tables, each with the column that holds its shard key"
    )
    options: dict[str, Setting] = Field(
        default={},
        description="more libpq keywords; passwords are not allowed",
    )
    subscription_options: dict[str, Setting] = Field(
        default={},
        description="libpq keywords with which the target's host logs in to the source of a move, "
        "where they differ from options",
    )


class SshSection(Section):
    """How to reach the host; what is left out comes from ~/.ssh/config."""

    host: Host | None = _optional("the host name, or its name in ~/.ssh/config")
    user: Login | None = _optional("the login user")
    port: Port | None = _optional("the port of the SSH server")
    key_file: Text | None = _optional("the private key; ~ is expanded")
    accept_new: bool = Field(
        default=False, description="accept the key of a host on the first connection"
    )


class ControlSection(Section):
    """Commands for the server, where pg_ctl is not the way; run on its host."""

    start: Text | None = _optional("starts the server")
    stop: Text | None = _optional("stops the server")
    reload: Text | None = _optional("makes the server reload its settings")
    status: Text | None = _optional("reports whether the server is running")


class NodeSection(Section):
    """One PostgreSQL server."""

    host: Host = Field(description="the host of the server")
    port: Port = Field(description="the port of the server")
    shards: Shards = Field(description="the shards of the node, such as 0-3,17, or none")
    data_directory: LocalPath | None = _optional("the server's data directory")
    bin_directory: LocalPath | None = _optional("the directory of PostgreSQL's programs")
    os_user: Text | None = _optional("the user who runs the server on its host")
    settings: dict[str, Setting] = Field(
        default={}, description="server parameters for a clone that shardctl makes on this node"
    )
    pooler_host: Host | None = _optional("the server's host as the poolers see it; host by default")
    ssh: SshSection | None = _optional("how shardctl reaches the host")
    control: ControlSection | None = _optional("commands that control the server")


class PoolerSection(Section):
    """One PgBouncer."""

    host: Host = Field(description="the host of the pooler")
    port: Port = Field(description="the port of the pooler")
    config: LocalPath = Field(description="the pooler's configuration file")
    databases_file: LocalPath | None = _optional(
        "the file of aliases that shardctl writes and the configuration includes; by "
        "default pgbouncer.databases.ini beside pgbouncer.ini"
    )
    admin_user: Name | None = _optional("the user of the admin console; database.user by default")
    aliases: list[Literal["shard", "node"]] = Field(
        default=["node"],
        min_length=1,
        description="which aliases the pooler offers: shard, node or both",
    )
    os_user: Text | None = _optional("the user who runs the pooler on its host")
    ssh: SshSection | None = _optional("how shardctl reaches the host")


class MoveSection(Section):
    """Defaults for moves."""

    max_pause: PositiveDuration = Field(
        default=_written("5s"), description="the longest time that a cutover may hold clients"
    )
    retain: Duration = Field(
        default=_written("24h"), description="how long retired schemas are kept"
    )
    clone_with: Text | None = _optional(
        "a command that copies the source in place of pg_basebackup, on the target's host"
    )
    max_wal: Size | None = _optional(
        "the maximum WAL that the source retains for a move, such as 20GB; by default "
        "a tenth of the free disk space there"
    )


class FileSection(Section):
    """A cluster of sharded PostgreSQL nodes, as shardctl reads it."""

    cluster: Name = Field(description="the name of the cluster")
    shards: ShardsSection = Field(description="the shards of the cluster")
    id: IdSection = Field(default_factory=IdSection, description="how ids are generated")
    database: DatabaseSection = Field(description="the database and its roles")
    nodes: dict[str, NodeSection] = Field(
        description="the nodes by name", min_length=1, json_schema_extra=_NAMES
    )
    poolers: dict[str, PoolerSection] = Field(
        default={}, description="the poolers by name", json_schema_extra=_NAMES
    )
    move: MoveSection = Field(default_factory=MoveSection, description="defaults for moves")
