"""How long OpenMP's threads, which are torch's, wait for work before they give up their core: set before OpenMP is
loaded, which reads it once.

By default they keep the core for milliseconds, in which the engine's own threads and other programs cannot have it. On
a quiet machine it makes no difference to torch. What the user's environment says stays.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
