"""Where the checkout, the real data and the released code's results are."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("MLT_JAX_DATA", ROOT.parent / "shared" / "data"))
GOLDEN = ROOT / "tests" / "golden"
