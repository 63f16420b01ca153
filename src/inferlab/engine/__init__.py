"""The engine: requests go in, tokens come out, and every second of it is accounted for."""

from inferlab.engine.llm import LLM, Piece, Stream
from inferlab.engine.request import Completion
from inferlab.engine.sampling import SamplingParams

__all__ = ["LLM", "Completion", "Piece", "SamplingParams", "Stream"]
