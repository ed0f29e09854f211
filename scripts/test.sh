#!/usr/bin/env bash
# Installs what the tests need into .venv, once, and runs them: bash scripts/test.sh [options of pytest]
set -eu
cd "$(dirname "$0")/.."
. scripts/environment.sh

make_venv
install tests --group test
install_chromium
# Two at a time: a test of the page mostly waits.
exec "$(venv_python)" -m pytest -q -rfER --numprocesses 2 --dist loadfile "$@"
