"""`python -m ringcomm.run`: ringrun, the launcher, with its own options (`--help`)."""

from typing import NoReturn

from .programs import replace_by


def main() -> NoReturn:
    """Become ringrun."""
    replace_by("ringrun")


if __name__ == "__main__":
    main()
