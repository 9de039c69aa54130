"""Settings of every test: examples of hypothesis are the same in each run, and a busy machine fails none."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")
