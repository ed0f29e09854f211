#!/usr/bin/env bash
# Installs what the tests need into .venv, once, and runs them: bash scripts/test.sh [options of pytest]
set -eu
cd "$(dirname "$0")/.."
. scripts/environment.sh

make_venv
install_chromium &
install tests --group test
wait
# More than there may be cores: most of the time is waiting, for sound and for clocks.
exec "$(venv_python)" -m pytest -q -rfER --numprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
