"""`python -m tinyllm`: see `tinyllm.cli`."""

from tinyllm.cli import main

if __name__ == "__main__":
    main()
