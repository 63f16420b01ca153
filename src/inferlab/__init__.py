"""inferlab: the package beneath the executable book *Fundamentals of LLM Inference*."""

import os

__version__ = "0.1.0"

# OpenMP threads that spin while they wait stall each other as soon as another process wants a
# core: a torch pass then takes ten times as long. Works only if torch is not loaded yet.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A short spin, some tens of microseconds, is bounded and saves a pass most of its wake-ups.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
