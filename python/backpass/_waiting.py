"""How long OpenMP's threads wait for each other before they give up their core: set before OpenMP is loaded, which
reads it once.

By default they keep the core for milliseconds. Where it has other work, the thread they wait for may be waiting for
just that core: with one of two cores busy, a step of a small network took ten times as long. On a quiet machine it
makes no difference. What the user's environment says stays.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
