"""Event triggers of the source that refuse what a move changes in a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet

REFUSE = """
CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
'BEGIN RAISE EXCEPTION ''not in production: %'', tg_tag; END'
"""
SCHEMAS = "SELECT count(*) FROM pg_namespace"


TRIGGERS = (
    ("sql_drop", ""),
    ("ddl_command_end WHEN TAG IN ('ALTER SCHEMA')", "ALTER SCHEMA"),
    ("ddl_command_start WHEN TAG IN ('DROP TABLE')", ""),
)
"""What each is for, and the tag that it refuses."""


def test_what_would_stop_a_move_past_its_decision_is_refused_before_it(
    fleet_spares: MovedFleet,
) -> None:
    with fleet_spares.connect("a") as session:
        session.execute(REFUSE)
    for on, tag in TRIGGERS:
        try_out(fleet_spares, on, tag)


def try_out(fleet_spares: MovedFleet, on: str, tag: str) -> None:
    with fleet_spares.connect("a") as session:
        session.execute(
            f"CREATE EVENT TRIGGER guard ON {on} EXECUTE FUNCTION public.refuse()".encode()
        )
        before = session.execute(SCHEMAS).fetchone()
        done = fleet_spares.here("move-shards", "2-3", "--to", "c", "--dry-run")
        told = f"an event trigger (guard) refuses the move's statements: not in production: {tag}"
        assert (done.returncode, told in done.stderr) == ((1, True) if tag else (0, False)), (
            done.stderr
        )
        assert session.execute(SCHEMAS).fetchone() == before
        session.execute("DROP EVENT TRIGGER guard")
