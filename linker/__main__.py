"""`python -m linker` is the console script `linker`."""

from linker.cli import main

if __name__ == "__main__":
    main()
