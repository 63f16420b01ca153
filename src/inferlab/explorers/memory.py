"""What a conversation keeps in memory: the explorer of chapter 11."""

from __future__ import annotations

from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.explorers.catalog import catalog
from inferlab.figures import memory as drawing
from inferlab.figures import style
from inferlab.theory import costs, hardware, models

#: A 70B on four H100: room for users, and less of it with every token they say.
START: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "chip": "h100-sxm",
    "chips": 4,
    "kvDtype": None,
    "users": 8,
}
#: Tokens at which the picture stands still.
REST = 32_768


def kv_memory(**start: Any) -> Explorer:
    """Return explorer "kv-memory", starting from `START` changed by `start`."""
    settings = START | start
    shape, chip = models.get(settings["model"]), hardware.get(settings["chip"])
    alt = (
        f"Memory of {settings['chips']} x {chip.name} with the weights of {shape.name} and a cache "
        f"for each of {settings['users']} users, {costs.kv_bytes_per_token(shape):,.0f} bytes a "
        "token; as conversations grow the caches fill what is left, and each token takes longer."
    )
    still = style.themed(drawing.growth([shape]), alt=alt).html
    data = {"catalog": catalog(), "start": settings, "rest": REST}
    return show("kv-memory", data, alt=alt, still=still)
