#!/usr/bin/env bash
# Installs what the demo needs into .venv, once, and opens it: bash scripts/run.sh [options of app.py]
set -eu
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_venv
install page --group vocoder
(install talk --extra talk --group melody) || say "Without these packages it reads and answers, but cannot listen."
exec "$(venv_python)" app.py "$@"
