#!/usr/bin/env bash
# Build wheel and sdist into dist/, check them, and use the wheel in an empty environment, from a
# directory that has nothing of the project.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
pip() { "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"; }

python3 -m venv "$place/tools"
pip "$place/tools" build twine
rm -rf dist
"$place/tools/bin/python" -m build --outdir dist >"$place/build.log" || { cat "$place/build.log"; exit 1; }
"$place/tools/bin/twine" check --strict dist/*

python3 -m venv "$place/empty"
pip "$place/empty" dist/shardctl-*.whl
cd "$place"
"$place/empty/bin/shardctl" --version
"$place/empty/bin/shardctl" decode-id 11637205501278089
"$place/empty/bin/shardctl" demo
ls -l "$root/dist"
