"""`isthmus demo`"""


def demo() -> None:
    """Main job."""
