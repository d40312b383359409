"""What an application pays for: the router brings nothing of the operator's."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"typer", "rich", "fabric", "paramiko", "pydantic", "jinja2", "yaml"}


def test_the_router_loads_nothing_that_is_for_operators() -> None:
    code = "import sys, shardctl.router; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert not HEAVY & set(done.stdout.split())
