"""`python -m linker`: the same as the console script."""

from linker.cli import main

main()
