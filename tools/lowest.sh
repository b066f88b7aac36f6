#!/usr/bin/env bash
# Runs the fast tests with the oldest releases that pyproject.toml allows, in an environment made for it.
#   tools/lowest.sh                          all fast tests
#   tools/lowest.sh -n 0 tests/test_cli.py   any arguments of pytest
# PYTHON picks the interpreter; LOWEST_ENV names a folder in which the environment is kept for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
env=${LOWEST_ENV:-$(mktemp -d)}
[ -n "${LOWEST_ENV:-}" ] || trap 'rm -rf "$env"' EXIT
[ -x "$env/bin/uv" ] || { "${PYTHON:-python3}" -m venv "$env" && "$env/bin/pip" install --quiet uv; }
# Test tools stay current: their own bounds in [dev] are. What dependencies need in turn is as new as fits.
extras='dev,bench,cluster,report'
VIRTUAL_ENV=$env "$env/bin/uv" pip install --quiet --upgrade --resolution lowest-direct --editable ".[$extras]"
VIRTUAL_ENV=$env "$env/bin/uv" pip freeze
"$env/bin/pytest" -p no:cacheprovider -n auto --dist loadfile -m 'not slow' "$@"
