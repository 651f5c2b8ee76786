"""`python -m oneloop` is the command `oneloop`."""

import sys

from .cli.main import main

sys.exit(main())
