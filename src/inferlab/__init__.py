"""inferlab: the package beneath the executable book *Fundamentals of LLM Inference*."""

__version__ = "0.1.0"
