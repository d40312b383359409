"""The pictures of the docs are XML, and have what a move and a fleet report."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from tests import pictures

MOVE: dict[str, Any] = {
    "method": "stream",
    "source": "a",
    "target": "<b>",
    "shards": [2, 3],
    "report": {"pause_ms": 60.0},
    "steps": [
        {"name": name, "started": f"2026-11-21T13:50:{at}Z", "elapsed_ms": ms}
        for name, at, ms in (
            ("reserve", "30.000", 900.0),
            ("cutover.pause", "36.000", 10.0),
            ("cutover.standbys_again", "36.010", 0.1),
            ("cutover.route", "36.010", 55.0),
            ("cutover.serve", "36.065", 5.0),
            ("cutover.map", "36.070", 5.0),
        )
    ],
}
STATUS = {"nodes": [{"name": "a", "owned": [0, 1]}, {"name": "b", "owned": []}]}


def texts(svg: str) -> list[str | None]:
    return [one.text for one in ET.fromstring(svg).findall(".//{*}text")]  # noqa: S314  # our own


def test_a_cutover_shows_its_sub_steps_and_the_pause() -> None:
    found = texts(pictures.cutover(MOVE))
    assert found[2:] == [
        "paused for clients of these shards: 60 ms",
        *("pause", "10 ms", "route", "55 ms", "serve", "5 ms"),
    ]


def test_a_fleet_shows_who_owns_what() -> None:
    found = texts(pictures.fleet(STATUS))
    assert found[4:] == ["node a", "2 shards", "0", "1", "node b", "spare"]
