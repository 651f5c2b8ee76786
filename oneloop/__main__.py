"""`python -m oneloop` is the command `oneloop`."""

import sys

from .cli import main

sys.exit(main())
