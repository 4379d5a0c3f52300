"""`python -m patcher` is `sglang-patch`."""

import sys

from patcher.cli import main

sys.exit(main())
