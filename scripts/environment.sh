# Sourced by run.sh and test.sh: makes a virtual environment and installs requirement files into it.
# PYTHON names the interpreter to use, otherwise any Python 3.10 to 3.13 is taken; VENV the folder, otherwise .venv.

venv=${VENV:-.venv}

say() { printf '%s\n' "$*"; }
fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    is_supported "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.10 to 3.13; set PYTHON to one that is."
    printf '%s' "$PYTHON"
    return
  fi
  for candidate in python3 python3.12 python3.11 python3.13 python3.10 python; do
    if is_supported "$candidate"; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail "No Python 3.10 to 3.13 was found; install one (Debian, Ubuntu: apt-get install python3 python3-venv) or set PYTHON."
}

# The environment's interpreter, on POSIX and on Windows.
venv_python() {
  if [ -x "$venv/Scripts/python.exe" ]; then printf '%s' "$venv/Scripts/python.exe"; else printf '%s' "$venv/bin/python"; fi
}

make_venv() {
  if is_supported "$(venv_python)"; then return; fi
  python=$(find_python) || exit 1
  say "Making the virtual environment $venv with $("$python" --version)."
  if ! told=$("$python" -m venv --clear "$venv" 2>&1); then
    if "$python" -c 'import ensurepip' 2>/dev/null; then
      fail "$python cannot make the virtual environment $venv ($(printf '%s\n' "$told" | sed '/^ *$/d' | tail -n 1)); set VENV to another folder, or PYTHON to another Python."
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    fail "$python cannot make virtual environments; on Debian or Ubuntu run: apt-get install python$version-venv"
  fi
}

has_nvidia_gpu() {
  ls /dev/nvidia[0-9]* >/dev/null 2>&1 || nvidia-smi -L >/dev/null 2>&1
}

has_torch() {
  "$py" -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != sys.argv[1])' "${1#torch==}" 2>/dev/null
}

# pip_locked FILE [options]: installs the very files whose hashes a lock names, and nothing else.
pip_locked() {
  "$py" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --no-deps --only-binary :all: --require-hashes -r "$@"
}

# torch's default Linux build brings gigabytes of CUDA libraries; without a GPU its CPU build is enough.
install_cpu_torch() {
  index=https://download.pytorch.org/whl/cpu
  build=$("$py" -c 'import platform, sys; print("cp%d%d-" % sys.version_info[:2] + platform.machine())')
  if ! grep -q "^# Builds:.* $build" assets/locks/torch-cpu.txt; then
    say "No hash of torch's CPU build for $build is known here, so torch comes from pip's own index, which has the larger CUDA build; for the smaller one remove $venv and set PYTHON to a Python 3.11 to 3.13."
    return
  fi
  why="PyTorch's index of CPU builds cannot be reached"
  if "$py" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$index/" 2>/dev/null; then
    pip_locked assets/locks/torch-cpu.txt --index-url "$index" && return
    why="pip could not install torch's CPU build (its message above says why)"
  fi
  pip_locked assets/locks/torch-cpu.txt 2>/dev/null && return # a mirror of one's own may have it
  say "$why; taking torch from pip's own index, which has the larger CUDA build."
}

# torch first: which of its builds it is decides whether CUDA's libraries are wanted.
install_torch() {
  pin=$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' requirements.txt)
  if has_torch "$pin"; then return; fi
  sed -n '/^torch==/,/[^\\]$/p' assets/locks/requirements.txt >"$venv/torch.txt"
  if [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu; then install_cpu_torch; fi
  if has_torch "$pin"; then return; fi
  pip_locked "$venv/torch.txt"
}

wants_cuda() {
  [ "$(uname -s)" = Linux ] && ! "$py" -c 'import importlib.metadata as m, sys; sys.exit("+cpu" not in m.version("torch"))' 2>/dev/null
}

# install FILE: brings the environment up to a requirements file; does nothing when that was done before.
install() {
  py=$(venv_python)
  wanted=$(cat requirements*.txt assets/locks/*.txt scripts/environment.sh | cksum)
  stamp=$venv/installed-$(printf '%s' "$1" | tr -c 'a-z\n' -)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  say "Installing the packages of $1; the first time takes some minutes."
  cuda=
  install_torch && if wants_cuda; then cuda="-r assets/locks/requirements-cuda.txt"; fi
  # shellcheck disable=SC2086
  pip_locked "assets/locks/$1" $cuda ||
    fail "pip could not install the packages of $1; its message above says why."
  "$py" -m scripts.install_vocoder || exit 1
  printf '%s\n' "$wanted" >"$stamp"
}

# The judges of sound, without the packages that they ask for and do not need here.
install_judges() {
  "$(venv_python)" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-judges.txt ||
    fail "pip could not install the packages of requirements-judges.txt; its message above says why."
}

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
