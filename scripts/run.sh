#!/usr/bin/env bash
# Installs what the demo needs into .venv, once, and opens it: bash scripts/run.sh [options of app.py]
set -eu
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_venv
install requirements.txt
exec "$(venv_python)" app.py "$@"
