#!/usr/bin/env bash
# Put promtool, which checks metrics and alert rules, into .venv/bin. It is taken out of Debian's
# package `prometheus`, which is not installed: that would start a server. Never fails: tests that
# need promtool are skipped without it.
set -euo pipefail
cd "$(dirname "$0")/.."

target=.venv/bin/promtool
[ -x "$target" ] && exit 0
if installed=$(command -v promtool); then
    ln -sf "$installed" "$target"
    exit 0
fi
without="tests of the alert rules are skipped until it is in the PATH"
command -v apt-get >/dev/null || { echo "no promtool and no apt-get here: $without"; exit 0; }

echo "taking promtool out of the package prometheus"
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
fetch() { (cd "$directory" && apt-get -q download prometheus) >"$directory/log" 2>&1; }
unpack() {
    dpkg-deb --fsys-tarfile "$directory"/prometheus_*.deb \
        | tar -xO ./usr/bin/promtool >"$directory/promtool"
}
# The lists of packages may be old, and only root can fetch new ones.
if { fetch || { [ "$(id -u)" -eq 0 ] && apt-get -q update >/dev/null 2>&1 && fetch; }; } && unpack; then
    install -m 755 "$directory/promtool" "$target"
else
    tail -n 3 "$directory/log" >&2
    echo "could not fetch the package prometheus; $without" >&2
fi
