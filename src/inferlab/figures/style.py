"""The book's visual language: arithmetic orange, bytes moved blue, KV cache green, waiting grey.

Three tones of the same roles: `LIGHT` and `DARK` meet WCAG AA as text on the page of either
theme; `PALETTE`, the middle tone, stays visible on both and is what matplotlib draws with, since a
stored figure cannot know the reader's theme. `themed` turns such a figure into inline SVG that
follows the theme after all.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Roles: what is computed, what is moved, what is remembered, what waits; then text and paper.
ROLES = ("compute", "bytes", "kv", "wait", "ink", "soft", "rule", "paper", "panel")


def _tones(*colours: str) -> Mapping[str, str]:
    return MappingProxyType(dict(zip(ROLES, colours, strict=True)))


LIGHT = _tones(
    "#b15700",
    "#1468c8",
    "#0b5a46",
    "#686b76",
    "#1f2630",
    "#56606e",
    "#d5d9df",
    "#ffffff",
    "#f3f4f5",
)
DARK = _tones(
    "#ff9833",
    "#66a8ff",
    "#93e6b0",
    "#959ca8",
    "#e3e8ee",
    "#a9b2bd",
    "#3a4451",
    "#14181e",
    "#222832",
)
PALETTE = _tones(
    "#d4700f", "#2587e0", "#127a55", "#868c98", "#747c88", "#868d97", "#a9afb9", "none", "none"
)


def use() -> None:
    """Set matplotlib's defaults to the book's: transparent, quiet, reproducible.

    Prefill is drawn as one wide block and decode as a row of thin ticks; titles state a finding;
    lines carry their own labels. Equal data make equal SVG, so that notebooks can be compared.
    """
    import matplotlib as mpl
    from cycler import cycler

    ink, soft = PALETTE["ink"], PALETTE["soft"]
    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 3.6),
            "figure.facecolor": "none",
            "figure.constrained_layout.use": True,
            "savefig.facecolor": "none",
            "savefig.transparent": True,
            "svg.hashsalt": "inferlab",
            "svg.fonttype": "none",
            "font.size": 11,
            "text.color": ink,
            "axes.facecolor": "none",
            "axes.edgecolor": soft,
            "axes.labelcolor": ink,
            "axes.titlecolor": ink,
            "axes.titlelocation": "left",
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlepad": 12,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.prop_cycle": cycler(
                color=[PALETTE[r] for r in ("bytes", "compute", "kv", "wait")]
            ),
            "grid.color": PALETTE["rule"],
            "grid.alpha": 0.35,
            "grid.linewidth": 0.7,
            "lines.linewidth": 2.2,
            "lines.markersize": 6,
            "xtick.color": ink,
            "ytick.color": ink,
            "legend.frameon": False,
        }
    )
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg", metadata={"Date": None})


def svg(figure: Figure) -> str:
    """Return `figure` as SVG text, the same bytes for the same drawing; no date inside."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


class Drawing:
    """A figure as inline SVG in the reader's theme, with the text that describes it."""

    def __init__(self, html: str, alt: str) -> None:
        self.html, self.alt = html, alt

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.alt


def themed(figure: Figure, *, alt: str) -> Drawing:
    """Return `figure` as inline SVG whose colours follow the page's theme; close the figure.

    `alt` says in a sentence what the picture shows. Colours outside `PALETTE` stay as they are.
    """
    import matplotlib.pyplot as plt

    text = svg(figure)
    plt.close(figure)
    roles = {tone: role for role, tone in PALETTE.items() if tone != "none"}
    text = re.sub("|".join(roles), lambda match: f"var(--{roles[match[0]]}, {match[0]})", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans, system-ui, sans-serif)", text)
    head = f'<svg role="img" aria-label="{escape(alt)}" style="max-width:100%;height:auto" '
    text = text.replace("<svg ", head, 1)
    return Drawing(f'<div class="inferlab-figure">{variables(".inferlab-figure")}{text}</div>', alt)


def variables(selector: str) -> str:
    """Return a `<style>` that gives `selector` the palette as `--compute`, `--bytes` and so on.

    The page may state its theme, each kind of host in its own way: the book, Colab, JupyterLab,
    VS Code. Elsewhere the system's preference decides. Paper is light.
    """

    def block(tones: Mapping[str, str]) -> str:
        return f" {selector}{{" + "".join(f"--{r}:{tone};" for r, tone in tones.items()) + "}"

    dark = (
        ":is(html[data-theme=dark],html[theme=dark],body[data-jp-theme-light=false],"
        "body[data-vscode-theme-kind$=dark])"
    )
    light = (
        ":is(html[data-theme=light],html[theme=light],body[data-jp-theme-light=true],"
        "body[data-vscode-theme-kind$=light])"
    )
    return (
        f"<style>{block(LIGHT)}"
        f"@media screen and (prefers-color-scheme:dark){{:root{block(DARK)}{light}{block(LIGHT)}}}"
        f"@media screen{{{dark}{block(DARK)}}}</style>"
    )
