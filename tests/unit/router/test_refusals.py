"""What a pooler refuses: exactly its own words, and for as long as patience lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg import errors
from psycopg.pq import DiagnosticField

from shardctl.router import refusals
from shardctl.router.known import Known
from shardctl.router.requests import Answer, Execute, Wait
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = "server login has been failing, try again later (server_login_retry)"
NEW = "server login has been failing, cached error: connect failed (server_login_retry)"
CUT_OFF = "server login has been failing, cached error: connection to 10.0.0.7:5432 refused, and"
ASKING = Execute(NodeName("a"), b"SELECT 1", ())


def told(text: str, severity: str = "FATAL") -> errors.ProtocolViolation:
    fields: dict[int, bytes | None] = {
        DiagnosticField.SEVERITY: severity.encode(),
        DiagnosticField.MESSAGE_PRIMARY: text.encode(),
    }
    return errors.ProtocolViolation(text, info=fields)


@pytest.mark.parametrize("text", [OLD, NEW, CUT_OFF])
def test_a_poolers_own_words_are_a_refusal(text: str) -> None:
    assert refusals.is_refusal(told(text))
    assert not refusals.is_refusal(told(text, "ERROR"))  # what a function raises


@pytest.mark.parametrize(
    "text",
    ["", "no such database: app_a", "query_wait_timeout", "pause mode", f"{OLD}!", f"oh: {NEW}"],
)
def test_other_words_are_none(text: str) -> None:
    assert not refusals.is_refusal(told(text))


class Pooler:
    """Answers requests with errors until these are used up; time passes where a plan waits."""

    def __init__(self, refused: Iterator[Exception]) -> None:
        self.now = 100.0
        self.asked: list[Execute] = []
        self.waits: list[float] = []
        self._refused = refused

    def run(self, **request: Any) -> Any:
        plan = refusals.execute(Known(1.0), ASKING._replace(**request))
        try:
            asked = next(plan)
            while True:
                if isinstance(asked, Wait):
                    self.waits.append(asked.seconds)
                    self.now += asked.seconds
                    asked = plan.send(None)
                    continue
                assert isinstance(asked, Execute)
                self.asked.append(asked)
                error = next(self._refused, None)
                asked = plan.send(Answer([], 1)) if error is None else plan.throw(error)
        except StopIteration as done:
            return done.value


@pytest.fixture
def pooler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pooler:
    made = Pooler(iter(request.param))
    monkeypatch.setattr("shardctl.router.refusals.time.monotonic", lambda: made.now)
    return made


def forever() -> Iterator[Exception]:
    while True:
        yield told(OLD)


@pytest.mark.parametrize("pooler", [[]], indirect=True)
def test_what_is_served_is_asked_once(pooler: Pooler) -> None:
    assert pooler.run() == Answer([], 1)
    assert pooler.asked == [ASKING]


@pytest.mark.parametrize("pooler", [[told(OLD), told(NEW)]], indirect=True)
def test_what_is_refused_waits_and_is_asked_again(pooler: Pooler) -> None:
    assert pooler.run() == Answer([], 1)
    assert pooler.waits == [0.01, 0.015]
    assert [one.seconds for one in pooler.asked] == [
        None,
        pytest.approx(0.99),
        pytest.approx(0.975),
    ]


@pytest.mark.parametrize("pooler", [[told(OLD), told("pause mode")]], indirect=True)
def test_another_error_is_raised_at_once(pooler: Pooler) -> None:
    with pytest.raises(errors.ProtocolViolation, match="pause mode"):
        pooler.run()
    assert len(pooler.asked) == 2


@pytest.mark.parametrize("pooler", [forever()], indirect=True)
def test_patience_ends(pooler: Pooler) -> None:
    with pytest.raises(errors.ProtocolViolation, match="server login has been failing"):
        pooler.run()
    assert pooler.now == pytest.approx(101.0)


@pytest.mark.parametrize("pooler", [forever()], indirect=True)
def test_a_deadline_ends_patience(pooler: Pooler) -> None:
    with pytest.raises(errors.ProtocolViolation):
        pooler.run(until=100.5)
    assert pooler.now == pytest.approx(100.5)
