"""Sweeps over depth, learning rate and token budget on a Ray cluster. See `python -m sweeps.depth_grid --help`."""
