"""The palette is legible and tells its roles apart, for every reader, in both themes."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest

from inferlab.figures import style

MEANINGS = ("compute", "bytes", "kv", "wait")

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "trichromat": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanope": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranope": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanope": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear_rgb(colour: str) -> list[float]:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(
        sum(w * c for w, c in zip(weights, linear_rgb(x), strict=True)) for x in (a, b)
    )
    return (high + 0.05) / (low + 0.05)


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """A colour in OKLab, as someone with that sight sees it."""
    rgb = linear_rgb(colour)
    r, g, b = (
        min(1, max(0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in SIGHT[sight]
    )
    l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)  # noqa: E741
    m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


@pytest.mark.parametrize("tones", [style.LIGHT, style.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", [*MEANINGS, "ink", "soft"])
@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_text_in_any_role_meets_aa(tones, role, ground):
    assert contrast(tones[role], tones[ground]) >= 4.5


@pytest.mark.parametrize("role", [*MEANINGS, "ink", "soft"])
def test_the_middle_tone_is_visible_on_both_papers(role):
    for paper in (style.LIGHT["paper"], style.DARK["paper"]):
        assert contrast(style.PALETTE[role], paper) >= 3


@pytest.mark.parametrize("tones", [style.LIGHT, style.DARK, style.PALETTE])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("pair", list(itertools.combinations(MEANINGS, 2)))
def test_meanings_stay_apart_for_every_kind_of_sight(tones, sight, pair):
    # Four times a just noticeable difference, which is about 0.02 in OKLab.
    assert math.dist(*(seen(tones[role], sight) for role in pair)) >= 0.08


def test_contrast_itself_is_right():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.fixture
def figure():
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context():
        style.use()
        made, axes = plt.subplots()
        axes.plot([1, 2, 3], [1, 4, 9])
        axes.set_title("Squares grow faster")
        yield made
        plt.close(made)


def test_the_same_drawing_is_the_same_bytes(figure):
    assert style.svg(figure) == style.svg(figure)
    assert "<dc:date>" not in style.svg(figure)


def test_a_themed_figure_follows_the_page_and_carries_its_text(figure):
    drawing = style.themed(figure, alt='Squares "grow" <fast>')
    html = drawing._repr_html_()
    assert f"var(--bytes, {style.PALETTE['bytes']})" in html
    assert 'aria-label="Squares &quot;grow&quot; &lt;fast&gt;"' in html
    assert "Squares grow faster" in html
    assert "DejaVu" not in html
    assert html.count("var(--sans, system-ui, sans-serif)") >= 3
    assert repr(drawing) == 'Squares "grow" <fast>'


def test_loading_the_palette_loads_no_matplotlib():
    code = "import sys, inferlab.figures.style; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Book, Colab, JupyterLab and VS Code each say their theme in their own way.
STATED = {
    "light": (
        "document.documentElement.dataset.theme = 'light'",
        "document.documentElement.setAttribute('theme', 'light')",
        "document.body.dataset.jpThemeLight = 'true'",
        "document.body.dataset.vscodeThemeKind = 'vscode-light'",
    ),
    "dark": (
        "document.documentElement.dataset.theme = 'dark'",
        "document.documentElement.setAttribute('theme', 'dark')",
        "document.body.dataset.jpThemeLight = 'false'",
        "document.body.dataset.vscodeThemeKind = 'vscode-dark'",
    ),
}
TONES = {"light": style.LIGHT, "dark": style.DARK}
READ = "getComputedStyle(document.querySelector('.x')).getPropertyValue('--compute')"


@pytest.mark.browser
@pytest.mark.parametrize("system", ["light", "dark"])
def test_a_page_that_states_its_theme_overrides_the_system(visit, system):
    html = f"<p class='x'>text</p>{style.variables('.x')}"
    page = visit(html, theme=system).page
    assert page.evaluate(READ) == TONES[system]["compute"]
    for stated, ways in STATED.items():
        for say in ways:
            page.reload()
            page.evaluate(say)
            assert page.evaluate(READ) == TONES[stated]["compute"], say
    page.emulate_media(media="print")
    assert page.evaluate(READ) == style.LIGHT["compute"]
