"""What `verify` reports of connections without asking a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from shardctl.checks import connection

if TYPE_CHECKING:
    from shardctl.checks.check import Place


class _Session:
    """A session to which a server answers that only chosen roles may log in."""

    def __init__(self, sslmode: str | None) -> None:
        self.info = self
        self._parameters = {} if sslmode is None else {"sslmode": sslmode}

    def get_parameters(self) -> dict[str, str]:
        return self._parameters

    def execute(self, _: object) -> list[object]:
        return []


@pytest.mark.parametrize(
    ("host", "sslmode", "codes"),
    [
        ("127.0.0.1", None, []),
        ("192.0.2.1", None, ["server_unproven"]),
        ("192.0.2.1", "require", ["server_unproven"]),
        ("192.0.2.1", "verify-ca", ["server_unproven"]),
        ("192.0.2.1", "verify-full", []),
    ],
)
def test_a_server_on_another_machine_that_proves_nothing_is_reported(
    host: str, sslmode: str | None, codes: list[str]
) -> None:
    node, topology = (
        SimpleNamespace(name="a", host=host),
        SimpleNamespace(database=SimpleNamespace(user="s")),
    )
    given = SimpleNamespace(connection=_Session(sslmode), node=node, topology=topology, findings=[])
    connection.look(cast("Place", given))
    assert [one.code for one in given.findings] == codes
