"""Makes the machines importable for the tests beside them."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
