"""``python -m backpass``."""

import sys

from backpass.cli import main

sys.exit(main())
