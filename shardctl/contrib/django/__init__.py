"""Django on a sharded database: what an application imports, also in its settings.

Models can be imported once Django has its applications, settings long before: each name is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "shard_databases": "fleet",
    "database": "fleet",
    "ShardRouter": "routing",
    "evenly": "routing",
    "shard_alias": "routing",
    "shard_atomic": "routing",
    "use_shard": "routing",
    "NoShardKey": "errors",
    "SeveralShards": "errors",
    "KeyChanged": "errors",
    "ShardedId": "models",
    "ShardedManager": "models",
    "ShardedModel": "models",
    "ShardedQuerySet": "models",
    "ShardedAdmin": "admin",
    "ShardedRunner": "runner",
}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
