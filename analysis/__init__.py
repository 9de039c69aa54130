"""Fits of scaling laws to run records, and a report. Needs neither torch nor Ray.

Start at `runs.load`, `fit`, `advise.optimum`, or `python -m analysis report PATH`.
"""
