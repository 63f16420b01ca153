"""Live panels: controls, a Run button, and the experiment's own figure beneath them.

    panel(experiment, batch=[1, 2, 4, 8], context=(16, 1024, 16), graph=True)

A panel needs ipywidgets and a kernel. A page without them shows one line instead that says how to
run it, and a notebook that is saved keeps that line, never the state of a widget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from inferlab.errors import InferlabError
from inferlab.figures import style

#: What a control may offer: choices (a list, or a mapping from label to value), a range of whole
#: numbers (low, high) or (low, high, step), or a switch.
Control = list[Any] | Mapping[str, Any] | tuple[int, ...] | bool

HOW = (
    "A live panel: open this notebook in Colab (the rocket at the top of the page) or in "
    "JupyterLab (<code>make lab</code>), run its cells, choose {names}, and press Run."
)


class Panel:
    """An experiment with controls; `panel` makes it.

    `controls` maps each argument's name to its widget (empty without ipywidgets), `button` runs
    the experiment, `result` is the HTML widget that holds what it returned, `status` the line
    beside the button.
    """

    def __init__(self, run: Callable[..., Any], controls: Mapping[str, Control]) -> None:
        self.run = run
        names = [name.replace("_", " ") for name in controls]
        self.how = HOW.format(names=" and ".join(filter(None, [", ".join(names[:-1]), names[-1]])))
        self.controls: dict[str, Any] = {}
        try:
            import ipywidgets
        except ImportError:
            return
        for name, control in controls.items():
            self.controls[name] = _widget(name, control)
        self.button = ipywidgets.Button(description="Run", button_style="primary", icon="play")
        self.status = ipywidgets.HTML()
        self.result = ipywidgets.HTML()
        self.button.on_click(lambda _: self.start())
        bar = ipywidgets.HBox([self.button, self.status])
        self.box = ipywidgets.VBox([*self.controls.values(), bar, self.result])

    def start(self) -> None:
        """Run the experiment with the controls' values, and show what it returns or why not."""
        self.button.disabled, self.status.value = True, "Running…"
        start = time.perf_counter()
        try:
            shown = self.run(**{name: widget.value for name, widget in self.controls.items()})
            self.result.value = _html(shown)
            self.status.value = f"Done in {time.perf_counter() - start:.1f} s"
        except Exception as error:  # raised in a callback, it would end unseen in the kernel's log
            kind = "" if isinstance(error, InferlabError) else f"{type(error).__name__}: "
            self.status.value = escape(f"{kind}{error}")
        finally:
            self.button.disabled = False

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        line = {"text/plain": repr(self), "text/html": f'<p class="live-panel">{self.how}</p>'}
        return {**self.box._repr_mimebundle_(), **line} if self.controls else line

    def __repr__(self) -> str:
        return self.how.replace("<code>", "`").replace("</code>", "`")


def panel(run: Callable[..., Any], /, **controls: Control) -> Panel:
    """Return a panel that calls `run` with the values of `controls` at each press of its button.

    Each control is named like an argument of `run`: a list (or a mapping from label to value)
    becomes buttons to choose from, a tuple (low, high) or (low, high, step) a slider, a bool a
    switch; the first choice, the low end or the bool itself is the starting value. `run` returns a
    matplotlib figure, anything with `_repr_html_`, text, or a list of these.
    """
    if not controls:
        raise InferlabError("controls: give at least one, such as batch=[1, 2, 4]")
    return Panel(run, controls)


def _widget(name: str, control: Control) -> Any:
    import ipywidgets

    label: dict[str, Any] = {
        "description": name.replace("_", " "),
        "style": {"description_width": "9em"},
    }
    if isinstance(control, bool):
        return ipywidgets.Checkbox(value=control, **label)
    if isinstance(control, tuple):
        if len(control) not in (2, 3):
            raise InferlabError(f"{name}: a range is (low, high) or (low, high, step)")
        low, high, step = (*control, 1)[:3]
        return ipywidgets.IntSlider(value=low, min=low, max=high, step=step, **label)
    if isinstance(control, Mapping):
        options: Sequence[Any] = list(control.items())
    else:
        options = [(str(value), value) for value in control]
    if not options:
        raise InferlabError(f"{name}: give at least one choice")
    label["style"]["button_width"] = "auto"
    return ipywidgets.ToggleButtons(options=options, layout={"width": "auto"}, **label)


def _html(shown: Any) -> str:
    from matplotlib.figure import Figure

    if isinstance(shown, list | tuple):
        return "".join(map(_html, shown))
    if isinstance(shown, Figure):
        title = next((text for axes in shown.axes if (text := axes.get_title("left"))), "")
        return style.themed(shown, alt=title or "The experiment's figure").html
    if hasattr(shown, "_repr_html_"):
        return str(shown._repr_html_())
    return f"<pre>{escape(str(shown))}</pre>"
