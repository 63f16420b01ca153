"""The score grid of attention, and when its square begins to matter: chapter 03's explorers."""

from __future__ import annotations

from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.figures import attention as drawing
from inferlab.figures import style
from inferlab.theory import limits, models
from inferlab.theory.shapes import ModelShape

#: Tokens of a text: powers of two, as contexts are.
LENGTHS = tuple(2**n for n in range(6, 18))
TEXTS = (2, 4, 8, 16, 24, 64, 256, 1024, 2048, 8192, 32_768, 131_072)


def score_grid(shape: ModelShape, start: int = 4) -> Explorer:
    """Return animation "score-grid": each token looks at itself and those before it."""
    texts = [{"tokens": n, "share": limits.attention_share(shape, n)} for n in TEXTS]
    sizes = {"name": shape.name, "heads": shape.heads, "layers": shape.layers}
    alt = (
        f"A square grid of scores that fills row by row below its diagonal: {start} tokens make "
        f"{start * (start + 1) // 2} scores in a head, 2,048 tokens {2048 * 2049 // 2:,}."
    )
    still = style.themed(drawing.grids((4, 24)), alt=alt).html
    data = {"shape": sizes, "texts": texts, "start": start}
    return show("score-grid", data, alt=alt, still=still)


def share(start: str = "llama-2-70b", length: int = 2048) -> Explorer:
    """Return explorer "attention-share": what part of a prefill grows with the square."""
    data = share_data(start, length)
    chosen = models.get(start)
    alt = (
        f"Share of a prefill's operations that attention takes, for each model of the catalog: "
        f"{100 * limits.attention_share(chosen, length):.1f} % of {chosen.name}'s at {length:,} "
        "tokens."
    )
    shown = [models.get(key) for key in ("llama-2-70b", "llama-3.1-8b", "smollm2-135m")]
    still = style.themed(drawing.shares(shown, LENGTHS), alt=alt).html
    return show("attention-share", data, alt=alt, still=still)


def share_data(start: str, length: int) -> dict[str, Any]:
    """Return what explorer "attention-share" shows: each model's share at each of `LENGTHS`."""
    found = sorted(models.all(), key=lambda shape: shape.params)
    return {
        "tokens": list(LENGTHS),
        "start": start,
        "length": length,
        "models": [
            {
                "key": shape.key,
                "name": shape.name,
                "shares": [limits.attention_share(shape, n) for n in LENGTHS],
                "half": _half(shape),
            }
            for shape in found
        ],
    }


def _half(shape: ModelShape) -> float | None:
    """Return where attention takes half, or None where layers do not all see everything."""
    if shape.windowed_layers or shape.latent:
        return None
    return limits.attention_half_tokens(shape)
