"""The engine: requests go in, tokens come out, and every second of it is accounted for."""

from inferlab.engine.llm import LLM, Piece, Stream
from inferlab.engine.request import Completion
from inferlab.engine.sampling import SamplingParams
from inferlab.engine.serving import Engine

__all__ = ["LLM", "Completion", "Engine", "Piece", "SamplingParams", "Stream"]
