"""tinyllm: trains one small language model on one node, exactly and restartably."""

import os

# Threads of libgomp, torch's OpenMP on Linux, wait for each other by spinning. Where other processes
# take the cores, a step takes ten times as long on two threads as on one (DECISIONS.md). They sleep after so many
# spins instead. It is read where torch is loaded, so it is set here; whoever chose a policy keeps it.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"
