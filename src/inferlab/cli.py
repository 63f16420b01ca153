"""The command line: generate, chat, serve, explain, device, bench, record."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer
from rich.console import Console

from inferlab import __version__
from inferlab.errors import InferlabError
from inferlab.theory import units

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from inferlab.engine import LLM, Completion, Stream, parallel

Item = TypeVar("Item")

app = typer.Typer(
    name="inferlab",
    help="Run a language model and see where its time goes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure this machine, as ratios in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")

INTERRUPTED = 130  # what a shell expects after Ctrl-C
ACCOUNT = (
    "text",
    "token_ids",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "finish_reason",
    "ttft_s",
    "tpot_s",
    "tokens_per_second",
    "bytes_per_token",
    "weight_bytes_per_token",
    "kv_read_bytes_per_token",
    "achieved_bytes_per_second",
)

Model = Annotated[
    str | None,
    typer.Option(help="A .gguf file, a model folder or a hub name; SmolLM2-135M if left out."),
]
MaxNewTokens = Annotated[int, typer.Option(help="The most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens up to this sum.")]
TopK = Annotated[int, typer.Option(help="Sample from so many likeliest tokens; 0 is all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than this part of the top.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")]
System = Annotated[str | None, typer.Option(help="A system message for the chat template.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; one a core if left out.")]
Quantize = Annotated[
    str | None,
    typer.Option(help="q8 or q4 rounds float weights, none widens all; left out, as stored."),
]
Activations = Annotated[
    str,
    typer.Option(
        help="int8 (before weights of 8 bits int16) or float32 where a CPU meets quantised "
        "weights; auto is int8."
    ),
]
Dtype = Annotated[str, typer.Option(help="fp32, bf16 or fp16; auto is the device's own.")]
Device = Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")]
Kernels = Annotated[str, typer.Option(help="simd, triton or torch; auto takes the fastest.")]
Peers = Annotated[bool, typer.Option(help="Measure transformers too, if it is here.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"inferlab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Run a language model and see where its time goes."""
    if _has_company() and context.invoked_subcommand != "generate":
        raise InferlabError("torchrun starts generate alone: other commands are one process")


@app.command()
def generate(
    prompt: Annotated[
        str, typer.Argument(help="What to say to the model; - reads it from standard input.")
    ] = "-",
    model: Model = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of the answer.")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log-probabilities of each token and of this many others."),
    ] = None,
    system: System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Give the prompt as it is, without a chat template.")
    ] = False,
    threads: Threads = None,
    quantize: Quantize = None,
    activations: Activations = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
    kernels: Kernels = "auto",
    as_json: Json = False,
) -> None:
    """Answer a prompt, and account for the time and the bytes of every token."""
    with _interruptible(), _company(device) as group:
        from inferlab.engine import LLM, SamplingParams

        params = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            max_new_tokens=max_new_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
            logprobs=logprobs,
        )
        text = prompt
        if prompt == "-":
            text = group.text(_from_stdin) if group else _from_stdin()
        if not text:
            raise InferlabError("prompt is empty: give some text, or - and text on standard input")

        def load() -> LLM:
            return LLM.load(
                model,
                device,
                dtype,
                quantize,
                kernels,
                threads=threads,
                activations=activations,
                group=group,
            )

        with _progress("reading the model"):
            llm = group.together(load) if group else load()
        _note_floats(llm, quantize)
        if group:
            _note(f"{group.size} ranks; torch decodes, other kernels could not add up across them")
        ids: str | list[int] = text
        if llm.tokenizer and llm.tokenizer.has_chat_template and not raw:
            ids = llm.tokenizer.chat([{"role": "user", "content": text}], system)
        elif system is not None:
            raise InferlabError("system needs a chat template: the model has none, or --raw is on")
        stream = llm.stream(ids, params)
        with group.deferred() if group else contextlib.nullcontext():
            cut = _print_stream(stream, quiet=as_json)
        if not group or group.rank == 0:
            cut = _print_account(llm, stream.completion, cut, as_json=as_json)
        if cut:
            raise typer.Exit(INTERRUPTED)


@app.command()
def chat(
    model: Model = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    threads: Threads = None,
    quantize: Quantize = None,
    activations: Activations = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
    kernels: Kernels = "auto",
    as_json: Json = False,
) -> None:
    """Talk with the model. /reset begins anew, /exit or Ctrl-D leaves, Ctrl-C cuts an answer."""
    with _interruptible():
        from inferlab.engine import LLM, SamplingParams

        params = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            max_new_tokens=max_new_tokens,
            stop=tuple(stop or ()),
        )
        with _progress("reading the model"):
            llm = LLM.load(
                model, device, dtype, quantize, kernels, threads=threads, activations=activations
            )
        _note_floats(llm, quantize)
        conversation = llm.chat(system)
        typed = sys.stdin.isatty()
        if typed:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (gives input() its arrow keys)
            _note(f"{llm.name}, {llm.dtype}: /reset, /exit; Ctrl-C cuts an answer")
        while True:
            try:
                text = input("> " if typed else "").strip()
            except EOFError:
                break
            if text == "/exit":
                break
            if text == "/reset":
                conversation = llm.chat(system)
            if text in ("", "/reset"):
                continue
            try:
                stream = conversation.send(text, params)
            except InferlabError as error:
                if not typed:
                    raise
                _note(f"inferlab: {error}; /reset begins anew")
                continue
            cut = _print_stream(stream, quiet=as_json)
            cut = _print_account(llm, stream.completion, cut, as_json=as_json)
            if cut and not typed:
                raise typer.Exit(INTERRUPTED)


@app.command()
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="INFERLAB_API_KEY", help="The bearer token that clients must send."),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Requests that run at a time.")] = 16,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that wait; more get a 429.")
    ] = 128,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Positions of KV cache for all; from memory if left out.")
    ] = None,
    step_tokens: Annotated[
        int, typer.Option(help="Tokens of a step: rows that write first, then prompts.")
    ] = 256,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The longest answer; the context if left out.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a request may take.")
    ] = 600.0,
    threads: Threads = None,
    quantize: Quantize = None,
    activations: Activations = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
    kernels: Kernels = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Serve a model by OpenAI's HTTP protocol, with a page to talk to it, until Ctrl-C."""
    with _interruptible():
        try:
            from inferlab.server import run
            from inferlab.server.app import Settings, create
            from inferlab.server.metrics import Metrics
            from inferlab.server.worker import Worker
        except ModuleNotFoundError as error:
            raise InferlabError(
                f"serve needs {error.name}: pip install 'inferlab[engine]'"
            ) from None
        from inferlab.engine import LLM
        from inferlab.engine.serving import Engine

        held = run.bind(host, port)
        local = run.is_loopback(held)
        if not local and not api_key:
            _note(f"whoever reaches {host} may use this server: --api-key asks for a key")
        with _progress("reading the model"):
            llm = LLM.load(
                model, device, dtype, quantize, kernels, threads=threads, activations=activations
            )
            llm.warm_up()
        _note_floats(llm, quantize)
        engine = Engine(llm, kv_tokens=kv_tokens, max_batch=max_batch, step_tokens=step_tokens)
        settings = Settings(
            api_key=api_key or None,
            hosts={"localhost", "127.0.0.1", "[::1]", host} if local else None,
            max_tokens=max_tokens,
            seconds=timeout,
            bandwidth=_read_limit(llm.model.device.type),
        )
        worker = Worker(engine, Metrics(engine), max_batch=max_batch, max_waiting=max_waiting)
        address = run.url(held)

        def ready() -> None:
            if as_json:
                print(json.dumps({"url": address, "model": llm.name}), flush=True)
            else:
                print(address, flush=True)
                _note(f"{llm.name}, {llm.dtype}: open the address, or point a client at /v1")

        worker.start()
        run.Server(create(worker, settings), worker, ready).run(sockets=[held])


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
    as_json: Json = False,
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


@app.command()
def device(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again.")] = False,
    as_json: Json = False,
) -> None:
    """Show this machine's two numbers, bytes and operations a second, and what runs each op."""
    from inferlab import machine

    with _interruptible(), _progress("measuring this machine"):
        here = machine.numbers(refresh)
    if as_json:
        print(json.dumps(dataclasses.asdict(here) | {"ridge": here.ridge}))
        return

    rates = _table("Number format", "FLOP/s", "Ridge, FLOP/byte")
    for dtype, rate in here.flops.items():
        rates.add_row(dtype, units.text(rate, "FLOP/s"), f"{here.ridge[dtype]:.1f}")
    reads = _table("Way of reading", "Bandwidth")
    for reader, rate in here.readers.items():
        best = rate == here.bandwidth
        reads.add_row(reader, units.rate_text(rate), style="bold" if best else None)
    ops = _table("Op", "Backend")
    for op, backend in here.backends.items():
        ops.add_row(op.replace("_", " "), backend)

    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(here.measured_at))
    console = Console(highlight=False)
    console.print(f"[bold]{here.name}[/] · {units.bytes_text(here.memory_bytes)} memory")
    console.print(
        f"reads {units.rate_text(here.bandwidth)}, calculates "
        f"{units.text(max(here.flops.values()), 'FLOP/s')} (measured {when})"
    )
    for shown in (rates, reads, ops):
        console.print(shown)


@bench.command("decode")
def bench_decode(
    tokens: Annotated[int, typer.Option(help="Tokens to decode.")] = 64,
    model: Model = None,
    threads: Threads = None,
    quantize: Quantize = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    kernels: Kernels = "auto",
    peers: Peers = True,
    as_json: Json = False,
) -> None:
    """Decode one sequence; compare with what the memory allows, and with transformers."""
    from inferlab.engine import LLM
    from inferlab.measure import decode

    with _interruptible(), _progress("loading the model"):
        llm = LLM.load(model, device, dtype, quantize, kernels, threads=threads)
    with _interruptible(), _progress("measuring"):
        found = decode.bench(llm, tokens, peers=peers, source=model)
    if as_json:
        print(json.dumps(found))
        return
    table = _table("", "tok/s", "a token", "bytes a token", "bandwidth", "of what is read here")
    for name, side in {"inferlab": found, **found["peers"]}.items():
        table.add_row(
            f"{name} {side.get('version', __version__)}",
            f"{side['tokens_per_second']:.1f}",
            units.seconds_text(side["seconds_per_token"]),
            units.bytes_text(side["bytes_per_token"]),
            units.rate_text(side["achieved_bytes_per_second"]),
            f"{side['fraction_of_bandwidth']:.0%}",
        )
    how = (
        f": {tokens} tokens after {found['prompt_tokens']}; "
        f"medians, taken in turn, {found['warm_ups']} warm-ups left out"
    )
    remarks = [f"The memory read {units.rate_text(found['bandwidth'])} in this run."]
    for name, side in found["peers"].items():
        remarks.append(f"{side['times_as_fast']:.2f} times as fast as {name}.")
    _print_bench(found, how, table, remarks, peers=peers)


@bench.command("prefill")
def bench_prefill(
    tokens: Annotated[
        list[int] | None, typer.Option(help="Tokens in a prompt; may be repeated.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Prompts of each length.")] = 5,
    model: Model = None,
    threads: Threads = None,
    quantize: Quantize = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    kernels: Kernels = "auto",
    peers: Peers = True,
    as_json: Json = False,
) -> None:
    """Read prompts of several lengths; compare with a matrix product, and with transformers."""
    from inferlab.engine import LLM
    from inferlab.measure import prefill

    with _interruptible(), _progress("loading the model"):
        llm = LLM.load(model, device, dtype, quantize, kernels, threads=threads)
    with _interruptible(), _progress("measuring"):
        lengths = tokens or prefill.TOKENS
        found = prefill.bench(llm, lengths, runs=runs, peers=peers, source=model)
    if as_json:
        print(json.dumps(found))
        return
    columns = ("prompt", "first token", "rate", "of a matrix product", *found["peers"])
    table = _table(*columns, first="right")
    for index, count in enumerate(found["tokens"]):
        table.add_row(
            f"{count:,}",
            units.seconds_text(found["seconds"][index]),
            units.text(found["flops_per_second"][index], "FLOP/s"),
            f"{found['fraction_of_product'][index]:.0%}",
            *(units.seconds_text(side["seconds"][index]) for side in found["peers"].values()),
        )
    how = f"; medians of {runs}, taken in turn, {found['warm_ups']} warm-up left out"
    rate = units.text(found["product_rate"], "FLOP/s")
    remarks = [f"A large matrix product made {rate} in this run."]
    _print_bench(found, how, table, remarks, peers=peers)


@bench.command("load")
def bench_load(
    url: Annotated[str, typer.Option(help="The server: its address, with or without /v1.")],
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests a second, on average; may be repeated for a sweep."),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="In place of a rate: requests under way all the time; may be repeated."),
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="What is promised, such as ttft=500ms,tpot=50ms,e2e=10s.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests at each rate.")] = 100,
    arrivals: Annotated[str, typer.Option(help="poisson, or gamma with --burstiness.")] = "poisson",
    burstiness: Annotated[
        float | None, typer.Option(help="With gamma: below 1 in bursts, above 1 evenly.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same requests.")] = 0,
    prompts: Annotated[
        Path | None, typer.Option(help="A prompt a line, or .jsonl with prompt or messages.")
    ] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(help="Length of made-up prompts, such as 64 or 20-200.")
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="The most tokens of an answer, such as 64 or 20-200.")
    ] = None,
    warm_ups: Annotated[int, typer.Option(help="Requests before the clock starts; left out.")] = 3,
    chat: Annotated[bool, typer.Option("--chat", help="Ask /v1/chat/completions.")] = False,
    model: Annotated[
        str | None, typer.Option(help="The model's name there; the server's first if left out.")
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Ask for answers of full length (vLLM's field, ours)."),
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The key, if the server wants one.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until a request has failed.")] = 600.0,
    picture: Annotated[Path | None, typer.Option(help="An .svg to draw the result to.")] = None,
    as_json: Json = False,
) -> None:
    """Send requests at their own times to any OpenAI-compatible server; see what is in time."""
    from inferlab.measure import load, load_report

    promised = load.promises(slo) if slo is not None else {}
    target, plans = load.plan(
        url,
        rates=rate or (),
        concurrencies=concurrency or (),
        requests=requests,
        burstiness=load.burstiness(arrivals, burstiness),
        seed=seed,
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        warm_ups=warm_ups,
        chat=chat,
        model=model,
        ignore_eos=ignore_eos,
        api_key=api_key,
        timeout=timeout,
    )
    if picture is not None and picture.suffix != ".svg":
        raise InferlabError(f"picture is {picture}: its name must end in .svg")
    with _interruptible():
        runs = [
            load_report.summary(load.checked(go(done)), promised)
            for go, done in _counted(plans, requests)
        ]
    found = load_report.whole(target, runs, promised)
    if picture is not None:
        from inferlab.figures import style

        picture.write_text(style.svg(load_report.picture(runs, promised)), encoding="utf-8")
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(load_report.table(runs))
    for line in load_report.remarks(runs):
        console.print(line, markup=False)
    if promised and rate:
        console.print(load_report.verdict(found), markup=False)


@bench.command("kernels")
def bench_kernels(
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile for GPUs that are not here (minutes, once).")
    ] = False,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Count the bytes that each Triton kernel moves.")
    ] = False,
    op: Annotated[list[str] | None, typer.Option(help="Only this op; may be repeated.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="With --compile: only this GPU, such as sm_90.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time every op here by each backend; or check its Triton kernels, with no GPU at all."""
    if compile_ and traffic:
        raise InferlabError("compile and traffic are two tables: ask for one at a time")
    if target and not compile_:
        raise InferlabError("target goes with --compile")
    if traffic:
        os.environ["TRITON_INTERPRET"] = "1"
    from inferlab.measure import kernel_tables as tables

    console = Console(highlight=False)
    with _interruptible():
        if compile_:
            from inferlab.kernels.gpu import compiled

            jobs = compiled.cases(op, target)
            made = list(_bar(compiled.compile_all(jobs), len(jobs), "compiling"))
            good = all(one.good for one in made)
            table: Table | Group = tables.machine_code(made)
            answer: Any = [one.as_dict() for one in made]
            text = f"{len(made)} kernels compiled, {sum(not one.good for one in made)} at fault."
        elif traffic:
            from inferlab.measure import kernels

            some = kernels.counted(op)
            counts = list(_bar(map(kernels.count, some), len(some), "counting"))
            good = all(one["good"] for one in counts)
            table, answer = tables.traffic(counts), counts
            text = f"A kernel bound by memory may move {kernels.LIMIT} times what it must."
        else:
            from inferlab.measure import kernels

            with _progress("measuring"):
                found = kernels.bench(op)
            good, table, answer = True, tables.times(found), found
            text = f"{found['name']}, {found['dtype']}: reads {units.rate_text(found['bandwidth'])}"
            text += f", multiplies matrices at {units.text(found['product_rate'], 'FLOP/s')}."
    if as_json:
        print(json.dumps(answer, allow_nan=False))
    else:
        console.print(table)
        console.print(text)
    if not good:
        raise typer.Exit(1)


@app.command()
def record(
    output: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    model: Model = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record too.")] = False,
) -> None:
    """Measure what the book plots on this machine, and write it down (some minutes)."""
    from inferlab.measure import record as recorder

    command = shlex.join(["inferlab", *sys.argv[1:]])
    with _interruptible():
        made = recorder.record(model, command, quick=quick, say=_note)
    path = recorder.write(made, output)
    print(json.dumps(made, allow_nan=False) if as_json else path)


def _has_company() -> bool:
    """Whether torchrun started this process and others beside it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"


@contextlib.contextmanager
def _company(device: str) -> Iterator[parallel.Group | None]:
    """Meet the processes beside this one, if there are any; all but rank 0 are then silent."""
    if not _has_company():
        yield None
        return
    from inferlab.engine import parallel

    left: typer.Exit | None = None
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(parallel.join(device))
        if group.rank:
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            yield group
        except typer.Exit as code:  # an orderly end, as all have it
            left = code
    if left:
        raise left


def _from_stdin() -> str:
    if sys.stdin.isatty():
        _note("prompt, then Ctrl-D:")
    return sys.stdin.read().removesuffix("\n")


def _note_floats(llm: LLM, quantize: str | None) -> None:
    """Say how many matrices could not follow `--quantize`."""
    from inferlab.model.transformer import FLOATS

    counts = {name: len(held) for name, held in llm.model.formats.items()}
    floats = sum(count for name, count in counts.items() if name in FLOATS.values())
    if quantize in ("q8", "q4") and floats:
        _note(
            f"{floats} of {sum(counts.values())} matrices stay float: "
            "their columns are no multiple of 32"
        )


def _print_stream(stream: Stream, *, quiet: bool) -> bool:
    """Print an answer as it comes; return whether Ctrl-C cut it."""
    cut = False
    pieces = iter(stream)
    try:
        with _progress("reading the prompt"):
            first = list(itertools.islice(pieces, 1))
        for piece in itertools.chain(first, pieces):
            if not quiet:
                print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        cut = True
    if not quiet:
        print(flush=True)
    return cut


def _print_account(llm: LLM, completion: Completion, cut: bool, *, as_json: bool) -> bool:
    """Print what an answer cost: as JSON on stdout, or for people on stderr.

    This machine is measured only where Ctrl-C has not `cut` the answer. Return `cut`, or whether
    Ctrl-C cut the measuring.
    """
    # Ranks on a CPU share what it reads, and this is one of them.
    measured = completion.tpot_s and not (llm.ranks > 1 and llm.model.device.type == "cpu")
    limit = None
    if measured and not cut:
        try:
            limit = _read_limit(llm.model.device.type)
        except KeyboardInterrupt:
            cut = True
    account = _account(llm, completion, limit)
    if as_json:
        print(json.dumps(account, ensure_ascii=False, allow_nan=False), flush=True)
        return cut
    cached = f" ({completion.cached_tokens} cached)" if completion.cached_tokens else ""
    words = [
        f"{completion.prompt_tokens} prompt{cached} + {completion.output_tokens} output tokens",
        llm.dtype if llm.ranks == 1 else f"{llm.dtype}, rank 0 of {llm.ranks}",
    ]
    if completion.ttft_s is not None:
        words.append(f"TTFT {units.seconds_text(completion.ttft_s)}")
    if completion.tpot_s:
        words += [
            f"TPOT {units.seconds_text(completion.tpot_s)}",
            f"{completion.tokens_per_second:.1f} tok/s",
            f"{units.bytes_text(completion.bytes_per_token)}/token",
            units.rate_text(completion.achieved_bytes_per_second),
        ]
    if limit:
        fraction = account["fraction_of_bandwidth"]
        words.append(f"{fraction:.0%} of the {units.rate_text(limit)} this machine reads")
    _note(" · ".join(words))
    return cut


def _account(llm: LLM, completion: Completion, limit: float | None) -> dict[str, Any]:
    """Return the keys of `generate --json`. `limit` is this machine's bandwidth in bytes/s."""
    achieved = completion.achieved_bytes_per_second
    account = {name: getattr(completion, name) for name in ACCOUNT}
    account["fraction_of_bandwidth"] = achieved / limit if achieved and limit else None
    account |= {"device": llm.model.device.type, "dtype": llm.dtype, "model": llm.name}
    account["ranks"] = llm.ranks  # bytes are those of rank 0
    account["matrices"] = {name: len(held) for name, held in llm.model.formats.items()}
    if completion.logprobs is not None:
        account["logprobs"] = [dataclasses.asdict(at) for at in completion.logprobs]
    return account


def _table(*columns: str, first: Literal["left", "right"] = "left") -> Table:
    """Return a table without rows, its columns flush right, except perhaps the `first`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else first)
    return table


def _print_bench(
    found: dict[str, Any], how: str, table: Table, remarks: Iterable[str], *, peers: bool
) -> None:
    """Print what was measured and `how`, a table, and remarks; `peers` says if any were wanted."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{found['model']}[/] {found['dtype']} on {found['device']}, "
        f"{found['threads']} threads{how}"
    )
    console.print(table)
    for remark in remarks:
        console.print(remark)
    if not found["peers"] and peers:
        _note(found["peers_note"])


def _read_limit(device: str) -> float | None:
    """Return the bytes a second that `device` reads, measured within the last minute.

    None if this machine is measured by another device, as on a GPU's host.
    """
    from inferlab import machine

    with _progress("measuring this machine"):
        numbers = machine.numbers()
        if numbers.device == device and time.time() - numbers.measured_at > 60:
            numbers = machine.numbers(refresh=True)
    return numbers.bandwidth if numbers.device == device else None


def _note(text: str) -> None:
    """Say something about the answer, beside it: stdout holds nothing but the answer."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, style="dim", markup=False)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    """Show on a terminal that something takes its time, once it has taken two seconds."""
    console = Console(stderr=True)
    status = console.status(what)
    timer = threading.Timer(2.0, status.start)
    if console.is_terminal:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        status.stop()


def _bar(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield `items`, with a bar on a terminal's stderr."""
    from rich.progress import track

    console = Console(stderr=True)
    return iter(
        track(
            items,
            what,
            total=total,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )


def _counted(
    plans: Sequence[Callable[[Callable[[], object]], Item]], each: int
) -> Iterator[tuple[Callable[[Callable[[], object]], Item], Callable[[], object]]]:
    """Yield each plan with what to call at the end of a request: a bar on a terminal's stderr."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("sending requests", total=len(plans) * each)
        for plan in plans:
            yield plan, lambda: progress.advance(task)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Leave quietly on Ctrl-C, with the exit code that a shell expects."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def main() -> None:
    """Run the app; bad input becomes one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UnicodeDecodeError:
        _fail("standard input is not text in UTF-8")
    except InferlabError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stdout = None  # whoever read has gone: say nothing, also not on the way out
        sys.exit(1)
    except OSError as error:
        sys.stdout = None
        _fail(f"the output cannot be written ({error.strerror})", code=1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except Exception as error:
        # What Typer raises for an option or a command that it doesn't know, or a bad value.
        if not hasattr(error, "format_message"):
            raise
        text = error.format_message()
        if "\n" in text:  # no arguments at all: the help is the message
            print(text)
            sys.exit(2)
        _fail(text[:1].lower() + text[1:].rstrip("."))
    sys.exit(code)


def _fail(text: str, code: int = 2) -> NoReturn:
    if not _has_company() or os.environ["LOCAL_RANK"] == "0":  # once is enough
        print(f"inferlab: {text}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
