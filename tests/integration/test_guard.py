"""The guard with real poolers: it resumes what nobody else resumes, and nothing else."""

from __future__ import annotations

import shutil
import subprocess

from shardctl.hosts.local import Local
from shardctl.pgbouncer import guard
from tests.fixtures.processes import ended
from tests.fixtures.servers.guards import (
    AFTER,
    LATER,
    Site,
    disarm_fired,
    fire,
    kill_all,
    leader,
    naming,
    state,
    wait_until_done,
)
from tests.fixtures.servers.postgres import wait_for


def test_a_guard_disarmed_in_time_has_done_nothing_and_leaves_nothing(site: Site) -> None:
    site.pause("one")
    armed = site.arm("one", after_s=LATER, staged=site.stage())
    leader(armed)
    done = guard.disarm(armed)
    assert (done.became, done.fired) == ("disarmed", False)
    assert len(done.log) == 1
    assert not armed.directory.exists()
    assert naming(armed.directory) == []
    assert site.paused() == {"one"}
    assert (site.directory / "shards.ini.new").exists()
    assert guard.disarm(armed).became == "absent"


def test_a_pid_that_belongs_to_another_by_now_is_left_alone(site: Site) -> None:
    armed = site.arm("one", after_s=60)
    kill_all(armed)
    with ended(subprocess.Popen(["sleep", "60"], start_new_session=True)) as another:  # noqa: S607
        (armed.directory / "pid").write_text(f"{another.pid}\n")
        assert guard.disarm(armed).became == "died"
        assert another.poll() is None
        another.kill()


def test_a_guard_asks_until_the_answer_is_true_while_its_clients_are_served(site: Site) -> None:
    site.pause("one")
    staged = site.stage()
    dsn = f"host=127.0.0.1 port={site.other.port} user=postgres dbname=postgres"
    question = guard.Question(dsn, "SELECT to_regclass('public.arrived') IS NOT NULL")
    armed = site.arm("one", question=question, staged=staged)
    wait_for(lambda: state(armed) == {"asking"})
    assert site.port_of("one") == site.node.port
    assert "exists (asking)" in site.refusal(name=armed.name)
    with site.other.connect() as session:
        session.execute("CREATE TABLE public.arrived ()")
        try:
            wait_for(lambda: state(armed) == {"done"})
        finally:
            session.execute("DROP TABLE public.arrived")
    assert site.port_of("one") == site.other.port
    assert not staged.file.exists()
    log = disarm_fired(armed)
    assert "the answer is not true" in log
    assert "the answer is true" in log
    site.pause("one")
    armed = site.arm("one", question=guard.Question(dsn, "SELECT true"), staged=site.stage())
    wait_until_done(armed)
    log = disarm_fired(armed)
    assert "the answer is true" in log
    assert "(0 were not, 0 unknown)" in log  # clients have waited for the file


def test_what_somebody_else_paused_stays_paused(site: Site) -> None:
    site.bouncer.offer(**dict.fromkeys(["one", "two", "*"], site.node.port))
    site.pause("two", 'we"ird $x')
    armed = site.arm('we"ird $x')
    without = guard.arm(
        Local(),
        name="2",
        directory=site.directory,
        console=site.console,
        aliases=[],
        after_s=AFTER,
        user=site.user,
    )
    wait_until_done(armed)
    wait_until_done(without)
    assert site.paused() == {"two"}
    disarm_fired(armed)
    disarm_fired(without)


def test_a_second_guard_of_a_name_is_refused_until_the_first_is_disarmed(site: Site) -> None:
    armed = site.arm("one", name="5f3a9c1e", after_s=60)
    assert "exists (armed)" in site.refusal(name="5f3a9c1e")
    assert guard.disarm(armed).became == "disarmed"
    armed = site.arm("one", name="5f3a9c1e")
    wait_until_done(armed)
    assert "exists (done)" in site.refusal(name="5f3a9c1e")
    disarm_fired(armed)


def test_a_guard_whose_directory_was_removed_resumes(site: Site) -> None:
    site.pause("one")
    armed = site.arm("one", after_s=LATER)
    shutil.rmtree(armed.directory)
    fire(armed)
    wait_for(lambda: site.paused() == set())
    wait_for(lambda: not naming(armed.directory))
