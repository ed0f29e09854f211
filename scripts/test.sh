#!/usr/bin/env bash
# Installs what the tests need into .venv, once, and runs them: bash scripts/test.sh [options of pytest]
set -eu
cd "$(dirname "$0")/.."
. scripts/environment.sh

find_chromium() {
  command -v chromium || command -v chromium-browser || command -v google-chrome
}

# The page's tests drive a real browser; where it cannot be had they are skipped, and this says so.
install_chromium() {
  if find_chromium >/dev/null; then return; fi
  if ! command -v apt-get >/dev/null; then
    say "Chromium is missing and there is no apt-get to install it with, so the tests of the page in a browser are skipped."
    return
  fi
  as_root=
  if [ "$(id -u)" != 0 ]; then
    as_root="sudo -n"
    if ! sudo -n true 2>/dev/null; then
      say "Chromium is missing and installing it needs root (apt-get install chromium), so the tests of the page in a browser are skipped."
      return
    fi
  fi
  say "Installing Chromium for the tests of the page."
  if ! { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1; then
    say "apt-get could not install Chromium, so the tests of the page in a browser are skipped."
  fi
}

make_venv
install requirements-test.txt
install_chromium
exec "$(venv_python)" -m pytest -q "$@"
