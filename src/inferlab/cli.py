"""The command line: generate, chat, explain, device, bench, record."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from inferlab import __version__
from inferlab.errors import InferlabError

app = typer.Typer(
    name="inferlab",
    help="Run a language model and see where its time goes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure this machine, as ratios in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"inferlab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Run a language model and see where its time goes."""


@app.command()
def explain(
    model: Annotated[str, typer.Option(help="A model's name, or the path of a config.json.")],
    device: Annotated[str, typer.Option(help="A chip's name, such as h100-sxm.")],
    prompt: Annotated[int, typer.Option(help="Tokens in the prompt.")] = 1000,
    batch: Annotated[int, typer.Option(help="Sequences that decode together.")] = 1,
    context: Annotated[
        int | None, typer.Option(help="Tokens in each cache; the prompt's length if left out.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Format of the weights; the chip's own 16 bits if left out.")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Format of the KV cache.")] = None,
    chips: Annotated[int, typer.Option(help="Chips that share every pass.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the arithmetic of one request on one chip: what it moves, computes and waits for."""
    from inferlab.theory import explain as explanation
    from inferlab.theory import hardware

    shape, chip = explanation.find_model(model), hardware.get(device)
    answer = explanation.report(shape, chip, prompt, batch, context, dtype, kv_dtype, chips)
    for note in explanation.notes(shape, chip, prompt, context, dtype):
        print(f"inferlab: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps(answer, indent=2, allow_nan=False))
        return
    title = f"{shape.name} on {f'{chips} x ' if chips > 1 else ''}{chip.name}"
    title += f", {dtype or chip.default_dtype}: prompt {prompt:,}"
    title += f", context {prompt if context is None else context:,}, batch {batch:,}"
    explanation.render(Console(highlight=False), chip, chips, answer, title)


def main() -> None:
    """Run the app; bad input becomes one line on stderr and exit code 2."""
    try:
        app()
    except InferlabError as error:
        print(f"inferlab: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
