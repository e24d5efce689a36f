"""`python -m turnwheel`."""

from . import main

main()
