"""`python -m analysis`: see `analysis.cli`."""

from analysis.cli import main

if __name__ == "__main__":
    main()
