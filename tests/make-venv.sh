#!/usr/bin/env bash
# Make the virtual environment $1 with a Python that is new enough, and install shardctl into it
# with the extras $2: exactly the releases of the files constraints-*.txt named $3, whose hashes
# pip compares, or without $3 the newest release of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 extras=$2 pinned=${3:-}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if new_enough "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    echo "shardctl needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 1
fi
if ! [ -x "$venv/bin/python" ] || ! new_enough "$venv/bin/python"; then
    echo "making $venv with $("$python" --version)"
    if ! "$python" -m venv --clear "$venv"; then
        rm -rf "$venv"
        echo "python's venv module is not complete; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
if [ -z "$pinned" ]; then
    echo "installing shardctl and the newest release of what it needs (extras: $extras)"
    exec "${install[@]}" --upgrade --upgrade-strategy eager -e ".[$extras]"
fi
echo "installing shardctl and what it needs (tests/constraints-$pinned.txt)"
"${install[@]}" --require-hashes -r "tests/constraints-$pinned.txt"
exec "${install[@]}" --no-deps --no-build-isolation -e .
