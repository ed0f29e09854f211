"""Install the vocoder package alone: `python -m scripts.install_vocoder`.

It asks for training-only packages, which are left out.

pip has no way to say "without its needs" inside a requirements file, and one of those needs has to
be compiled. So `bigvgan` has a requirements file of its own, installed with `--no-deps`; app.py
does it at its first start where only requirements.txt was installed, as on a Hugging Face Space.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shlex
import site
import subprocess
import sys

from moss_engine.api.errors import MissingPackageError, MossError
from moss_engine.config import REPO_ROOT

REQUIREMENTS = REPO_ROOT / "requirements-vocoder.txt"


def ensure_vocoder_package() -> None:
    """Install `bigvgan` (40 kB, hash-checked) unless it can be imported.

    Prints one sentence when it installs; raises MissingPackageError, which holds the command, when
    that fails.
    """
    if importlib.util.find_spec("bigvgan") is not None:
        return
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "-r",
        str(REQUIREMENTS),
    ]
    print("Installing the vocoder package bigvgan (40 kB), once.", flush=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if (
        site.ENABLE_USER_SITE
    ):  # where the interpreter's own folder is not writable, pip may just have made this one
        site.addsitedir(site.getusersitepackages())
    importlib.invalidate_caches()
    if result.returncode or importlib.util.find_spec("bigvgan") is None:
        reason = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MissingPackageError(
            f"The vocoder package bigvgan could not be installed ({reason}); run: "
            f"{shlex.join(command)}"
        )


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m scripts.install_vocoder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        ensure_vocoder_package()
    except MossError as error:
        sys.exit(str(error))
