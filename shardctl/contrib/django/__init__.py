"""Django on a sharded database: what an application imports, also in its settings.

Models can be imported once Django has its applications, settings long before: each name is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "fleet": ("shard_databases", "database", "shard_alias"),
    "routing": ("ShardRouter", "evenly", "shard_atomic", "use_shard"),
    "errors": ("NoShardKey", "SeveralShards", "KeyChanged"),
    "models": ("ShardedId", "ShardedManager", "ShardedModel", "ShardedQuerySet"),
    "admin": ("ShardedAdmin",),
    "runner": ("ShardedRunner",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
