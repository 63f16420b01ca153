"""The command line: generate, chat, explain, device, bench, record."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

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


def main() -> None:
    """Run the app; bad input becomes one line on stderr and exit code 2."""
    try:
        app()
    except InferlabError as error:
        print(f"inferlab: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
