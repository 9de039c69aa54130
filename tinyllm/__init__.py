"""tinyllm: trains one small language model on one node, exactly and restartably."""
