"""What is told of the machine belongs to the run that asks."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tinyllm import hardware

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak can't be reset here")
def test_peak_memory_is_that_of_a_run_and_not_of_the_one_before_in_the_same_process() -> None:
    earlier = np.ones(400 * MIB // 8)
    whole = hardware.peak_memory_bytes(CPU)
    del earlier
    hardware.reset_peak_memory(CPU)
    before = hardware.peak_memory_bytes(CPU)
    assert before < whole - 300 * MIB
    later = np.ones(100 * MIB // 8)
    assert 90 * MIB < hardware.peak_memory_bytes(CPU) - before < 200 * MIB
    del later


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="ru_maxrss is all there is")
def test_peak_memory_does_not_begin_with_that_of_the_process_which_started_this_one() -> None:
    held = np.ones(1200 * MIB // 8)
    code = "import torch; from tinyllm import hardware; print(hardware.peak_memory_bytes(torch.device('cpu')))"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(child.stdout) < held.nbytes
