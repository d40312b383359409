"""What an application or its operator does in a shard at a bad moment, by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.soak.fleet import ROLE

if TYPE_CHECKING:
    from tests.soak.scene import Scene
    from tests.soak.schedule import Fault

_LONGEST_S = 10
COLUMN = "unplanned"
"""Which `alter` adds."""


def vacuum_full(scene: Scene, fault: Fault) -> str:
    return _statements(scene, fault, "VACUUM (FULL) {}", hold=False)


def lock_table(scene: Scene, fault: Fault) -> str:
    return _statements(scene, fault, "BEGIN", "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")


def alter(scene: Scene, fault: Fault) -> str:
    """Add a column; it is dropped where the shard is when the episode is over."""
    shard = scene.shard()
    scene.cleanups.append(lambda: _drop_column(scene, shard))
    add = f"ALTER TABLE {{}} ADD COLUMN IF NOT EXISTS {COLUMN} integer"
    return _statements(scene, fault, "BEGIN", add, shard=shard)


def create_table(scene: Scene, fault: Fault) -> str:
    """Create a table and think better of it."""
    create = "CREATE TABLE {}_more (LIKE {} INCLUDING ALL)"
    return _statements(scene, fault, "BEGIN", create, end="ROLLBACK")


def grant(scene: Scene, fault: Fault) -> str:
    """Grant what is granted already."""
    return _statements(scene, fault, "BEGIN", f"GRANT SELECT ON {{}} TO {ROLE}")


def _statements(
    scene: Scene,
    fault: Fault,
    *statements: str,
    shard: int | None = None,
    end: str = "COMMIT",
    hold: bool = True,
) -> str:
    """Run statements on the owner of a shard, wait, and end the transaction."""
    shard = scene.shard() if shard is None else shard
    node = scene.observer.owners()[shard]
    table = f"shard{shard}.writes"
    done = f"{statements[-1].format(table, table)} on {node}"
    try:
        with scene.fleet.connect(node, options=f"-c statement_timeout={_LONGEST_S}s") as session:
            for statement in statements:
                session.execute(statement.format(table, table).encode())
            if hold:
                scene.hold(fault.lasting_s)
                session.execute(end.encode())
    except psycopg.Error as error:
        return f"{done}: {(str(error).splitlines() or [''])[0]}"
    return f"{done} for {fault.lasting_s:.1f} s" if hold else done


def _drop_column(scene: Scene, shard: int) -> None:
    node = scene.observer.owners()[shard]
    with scene.fleet.connect(node) as session:
        drop = f"ALTER TABLE shard{shard}.writes DROP COLUMN IF EXISTS {COLUMN}"
        session.execute(drop.encode())
