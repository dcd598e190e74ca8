"""Runs the `isthmus` command for `python -m isthmus`."""

import sys

from .cli import main

sys.exit(main())
