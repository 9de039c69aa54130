"""The README's figure: `python docs/figure.py out/demo docs/demo.svg`."""

import sys

import matplotlib.pyplot as plt

from analysis.plots import loss_vs_compute
from analysis.runs import load
from analysis.study import study

plt.rcParams["svg.hashsalt"] = "tinyllm"  # the same sweep gives the same file
swept = study(load(sys.argv[1]))
figure, ax = plt.subplots(figsize=(8.2, 4.4), layout="constrained")
loss_vs_compute(ax, swept.points, swept.fit, sizes=swept.sizes, flops=swept.runs.flops)
figure.savefig(sys.argv[2], metadata={"Date": None})
