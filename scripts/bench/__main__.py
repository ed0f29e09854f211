"""Measure a checkpoint on this machine: `python -m scripts.bench`.

See `scripts.bench.closed_loop`.
"""

import sys

from moss_engine.api.errors import MossError
from scripts.bench.closed_loop import main

if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
