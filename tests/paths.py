"""Where the checkout and the real data are."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("MLT_JAX_DATA", ROOT.parent / "shared" / "data"))
