"""`python -m isthmus` is the command `isthmus`."""

import sys

from .cli import main

sys.exit(main())
