#!/usr/bin/env bash
# Writes deploy/*.lock anew: every wheel of the image by version and hash, for every platform. models.lock has what
# `models prepare` needs besides, in the stage that prepares the model.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.tools/lock
test -x $tools/bin/uv || { python3 -m venv $tools && $tools/bin/pip install -q 'uv>=0.8,<1'; }
lock() {
  $tools/bin/uv pip compile -q "$@" --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --upgrade
}
lock pyproject.toml -o deploy/requirements.lock
lock deploy/build.in -o deploy/build.lock
$tools/bin/python -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["models"], sep="\n")' |
  lock - --constraints deploy/requirements.lock -o deploy/models.lock
