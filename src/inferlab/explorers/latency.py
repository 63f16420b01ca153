"""What a person feels of a request: the explorer of chapter 14."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlab.explorers import Explorer, show
from inferlab.figures import goodput, style
from inferlab.theory import units

#: A request that keeps its promises on an idle server, and breaks them once others wait.
START: dict[str, Any] = {"queue": 0.0, "prefill": 0.2, "tpot": 0.03, "tokens": 60}
PROMISE = {"ttft": 0.5, "tpot": 0.06}


def timeline(record: Mapping[str, Any], **start: Any) -> Explorer:
    """Return explorer "timeline": Enter, the pause, the stream. See `timeline_data`."""
    data = timeline_data(record, **start)
    settings = data["start"]
    ttft = settings["queue"] + settings["prefill"]
    total = ttft + (settings["tokens"] - 1) * settings["tpot"]
    alt = (
        f"One answer after Enter: a pause of {units.seconds_text(ttft)}, then "
        f"{settings['tokens']} tokens, {units.seconds_text(settings['tpot'])} apart, until "
        f"{units.seconds_text(total)}; sliders set the queue, the prompt and the pace, and a "
        "recorded request can be played in their place."
    )
    return show("timeline", data, alt=alt, still=style.themed(goodput.timeline(data), alt=alt).html)


def timeline_data(record: Mapping[str, Any], **start: Any) -> dict[str, Any]:
    """Return what explorer "timeline" shows: a recorded request, `START` changed, the promises.

    `record` has `model`, `prompt` and `pieces`, each with its `text`, the seconds `t` after Enter,
    and the `tokens` that it holds (1 if left out). A piece of no token belongs to the one before.
    """
    pieces: list[dict[str, Any]] = []
    for piece in record["pieces"]:
        if piece.get("tokens", 1) or not pieces:
            pieces.append({"t": piece["t"], "text": piece["text"]})
        else:
            pieces[-1]["text"] += piece["text"]
    return {
        "recorded": {"model": record["model"], "prompt": record["prompt"], "pieces": pieces},
        "start": START | start,
        "promise": PROMISE,
    }
