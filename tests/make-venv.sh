#!/usr/bin/env bash
# Make .venv with a Python that is new enough, and install both distributions into it, shardctl
# with extras $1.
set -euo pipefail
cd "$(dirname "$0")/.."

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if new_enough "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    echo "shardctl needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 1
fi
if ! [ -x .venv/bin/python ] || ! new_enough .venv/bin/python; then
    echo "making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv; then
        rm -rf .venv
        echo "python's venv module is not complete; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "installing shardctl and what it needs (extras: $1)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e shardctl/router -e ".[$1]"
