"""`python -m ringcomm.perf`: ring-perf, the benchmark, with its own options (`--help`)."""

from typing import NoReturn

from .programs import replace_by


def main() -> NoReturn:
    """Become ring-perf."""
    replace_by("ring-perf")


if __name__ == "__main__":
    main()
