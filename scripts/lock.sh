#!/usr/bin/env bash
# Writes deploy/*.lock anew: every wheel of the image by version and hash, for every platform.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.tools/lock
test -x $tools/bin/uv || { python3 -m venv $tools && $tools/bin/pip install -q 'uv>=0.8,<1'; }
for pair in pyproject.toml:deploy/requirements.lock deploy/build.in:deploy/build.lock; do
  $tools/bin/uv pip compile -q "${pair%%:*}" --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --upgrade -o "${pair##*:}"
done
