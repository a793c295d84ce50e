"""For all tests: hypothesis looks for new examples on a developer's machine, and repeats the same ones in CI.

Its deadline per example is off: a busy machine must not fail a property test.
"""

import os

from hypothesis import settings

settings.register_profile("ours", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "ours")
