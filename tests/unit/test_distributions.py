"""Two distributions share one package: each file is in one, and the router's needs no more."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import shardctl

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shardctl"
OPERATORS = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROUTERS = tomllib.loads((PACKAGE / "router/pyproject.toml").read_text())
INCLUDED: dict[str, str] = ROUTERS["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]


def test_what_one_includes_the_other_leaves_out() -> None:
    excluded = OPERATORS["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    assert excluded == [f"/{to}" for to in INCLUDED.values()]
    for source, to in INCLUDED.items():
        assert (PACKAGE / "router" / source).resolve() == ROOT / to
        assert (ROOT / to).exists()


def test_one_needs_the_other_in_the_same_version() -> None:
    (needed,) = (one for one in OPERATORS["project"]["dependencies"] if "shardctl" in one)
    assert needed == f"shardctl-router=={shardctl.__version__}"
    names = [one.split("[")[0].split(">")[0] for one in ROUTERS["project"]["dependencies"]]
    assert names == ["psycopg", "psycopg-pool", "PyYAML"]


def test_all_that_the_router_can_load_is_included() -> None:
    """Import all of its modules, where the rest of the package cannot be found."""
    names = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for to in INCLUDED.values()
        for path in ([ROOT / to] if to.endswith(".py") else sorted((ROOT / to).glob("*.py")))
        if path.suffix == ".py"
    )
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(*[name for name in sys.modules if name.startswith("shardctl")])
print(*{{name.partition(".")[0] for name in sys.modules}} & {{"pydantic", "jinja2", "typer"}})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded, heavy = done.stdout.split("\n")[:2]
    assert sorted(loaded.split()) == names
    assert heavy == ""
