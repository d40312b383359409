#!/usr/bin/env bash
# Build the pages as a site with the mkdocs of the virtual environment $1, into build/site.
# Fails where a link leads nowhere, or the site would load anything from elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf build/pages build/site
# Pages link to one another by these places, on a code host and in the site.
mkdir -p build/pages/tests build/pages/shardctl/access
ln -s "$PWD"/{README.md,CHANGELOG.md,LICENSE,docs,examples} build/pages/
ln -s "$PWD/tests/README.md" build/pages/tests/
ln -s "$PWD/shardctl/access/fence.sql" build/pages/shardctl/access/
# Without the advertisement for another project, in colour.
NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true "$1/bin/mkdocs" build --strict -f docs/mkdocs.yml
foreign='<(script|img|iframe)[^>]* src="?https?:|<link[^>]* rel="?(stylesheet|preconnect|preload)"?[^>]* href="?https?:|@import[^;]*https?:'
if grep -rEl "$foreign" build/site --include=*.html --include=*.css; then
    echo "these files of the site load something from elsewhere" >&2
    exit 1
fi
echo "build/site/index.html"
