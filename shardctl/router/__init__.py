"""What an application of a sharded fleet imports: rows by shard key, wherever the shard is."""

from shardctl.router.core import NodeHealth as NodeHealth
from shardctl.router.core import PoolSettings as PoolSettings
from shardctl.router.core import StatementEvent as StatementEvent
from shardctl.router.core import Stats as Stats
from shardctl.router.errors import AnotherCluster as AnotherCluster
from shardctl.router.errors import AnotherLoop as AnotherLoop
from shardctl.router.errors import Closed as Closed
from shardctl.router.errors import DeadlinePassed as DeadlinePassed
from shardctl.router.errors import MapUnread as MapUnread
from shardctl.router.errors import MapWentBack as MapWentBack
from shardctl.router.errors import NoConnection as NoConnection
from shardctl.router.errors import NodeUnknown as NodeUnknown
from shardctl.router.errors import OrderUnsupported as OrderUnsupported
from shardctl.router.errors import ShardMoved as ShardMoved
from shardctl.router.errors import WritesUnseen as WritesUnseen
from shardctl.router.statements import Aggregate as Aggregate
from shardctl.router.tasks.database import AsyncShardedDatabase as AsyncShardedDatabase
from shardctl.router.threads.database import ShardedDatabase as ShardedDatabase
