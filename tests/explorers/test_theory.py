"""The explorers' JavaScript answers like `inferlab.theory`, on every model, chip and format."""

from __future__ import annotations

import json
import random

import pytest

from inferlab.errors import InferlabError
from inferlab.explorers import script
from inferlab.explorers.catalog import catalog
from inferlab.theory import costs, formats, hardware, models, roofline

pytestmark = pytest.mark.browser


@pytest.fixture
def theory(visit):
    """Return `theory(body, argument)`: runs JavaScript in which `theory` and `catalog` stand."""
    page = visit(
        f"<script>const theory = {script('lib/theory')};\n"
        f"const catalog = {json.dumps(catalog())};</script>"
    ).page
    return lambda body, argument: page.evaluate(f"argument => {{ {body} }}", argument)


def multiplies(chip: hardware.Hardware, dtype: str) -> bool:
    try:
        chip.peak(dtype)
    except InferlabError:
        return False
    return True


def settings(count: int) -> list[dict]:
    """Draw settings, each model, chip and format often enough to appear."""
    draw = random.Random(20)
    shapes, chips, dtypes = models.all(), hardware.all(), formats.names()
    made: list[dict] = []
    while len(made) < count:
        i = len(made)
        chip = chips[i % len(chips)]
        dtype = draw.choice([name for name in dtypes if multiplies(chip, name)])
        made.append(
            {
                "model": shapes[i % len(shapes)].key,
                "chip": chip.key,
                "chips": draw.choice((1, 2, 3, 8, 64)),
                "dtype": dtype,
                "kv_dtype": draw.choice((None, "bf16", "fp8", "q8_0", "q4_0")),
                "prompt": int(2 ** draw.uniform(0, 20)),
                "context": draw.choice((0, int(2 ** draw.uniform(0, 20)))),
                "batch": draw.choice((1, 2, 7, 64, 1000)),
            }
        )
    return made


def expected(case: dict) -> dict:
    shape, chip = models.get(case["model"]), hardware.get(case["chip"])
    dtype, kv_dtype = case["dtype"], case["kv_dtype"]
    batch, context = case["batch"], case["context"]
    passes = {
        "prefill": costs.prefill(shape, case["prompt"], dtype=dtype, kv_dtype=kv_dtype),
        "chunk": costs.prefill(
            shape, case["prompt"], context=context, batch=batch, dtype=dtype, kv_dtype=kv_dtype
        ),
        "decode": costs.decode_step(shape, context, batch, dtype=dtype, kv_dtype=kv_dtype),
    }
    kv = kv_dtype or "bf16"
    return {
        "kv_per_token": costs.kv_bytes_per_token(shape, kv),
        "kv": costs.kv_bytes(shape, context, kv),
        "weights": costs.weight_bytes(shape, dtype),
        "streamed": costs.streamed_weight_bytes(shape, dtype, batch),
        **{
            name: placed(roofline.place(cost, chip, dtype, case["chips"]))
            for name, cost in passes.items()
        },
    }


def placed(placement: roofline.Placement) -> dict:
    fields = ("flops", "bytes", "intensity", "ridge", "bound", "attainable", "seconds")
    return {name: getattr(placement, name) for name in fields} | {
        "parts": {name: placed(part) for name, part in placement.parts.items()}
    }


ANSWERS = """
return argument.map(({ model, chip, chips, dtype, kv_dtype, prompt, context, batch }) => {
  const shape = catalog.models[model];
  const options = { dtype, kvDtype: kv_dtype };
  const kv = kv_dtype ?? "bf16";
  const place = (work) => theory.place(catalog, work, catalog.chips[chip], dtype, chips);
  return {
    kv_per_token: theory.kvBytesPerToken(catalog, shape, kv),
    kv: theory.kvBytes(catalog, shape, context, kv),
    weights: theory.weightBytes(catalog, shape, dtype),
    streamed: theory.streamedWeightBytes(catalog, shape, dtype, batch),
    prefill: place(theory.prefill(catalog, shape, prompt, options)),
    chunk: place(theory.prefill(catalog, shape, prompt, { ...options, context, batch })),
    decode: place(theory.decodeStep(catalog, shape, context, batch, options)),
  };
});
"""


def assert_same(ours, theirs, path="") -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for name in ours:
            assert_same(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, str):
        assert ours == theirs, path
    else:
        assert theirs == pytest.approx(ours, rel=1e-9, abs=0), path


def test_javascript_and_python_agree_on_random_settings(theory):
    cases = settings(600)
    assert {case["model"] for case in cases} == set(models.names())
    assert {case["chip"] for case in cases} == set(hardware.names())
    assert {case["dtype"] for case in cases} == set(formats.names())
    for case, answer in zip(cases, theory(ANSWERS, cases), strict=True):
        assert_same(expected(case), answer, str(case))


def test_javascript_knows_which_chip_multiplies_what(theory):
    pairs = [(chip.key, dtype) for chip in hardware.all() for dtype in formats.names()]
    found = theory(
        "return argument.map(([chip, dtype]) =>"
        " theory.arithmetic(catalog, catalog.chips[chip], dtype) ?? null)",
        pairs,
    )
    for (chip, dtype), answer in zip(pairs, found, strict=True):
        known = hardware.get(chip)
        assert answer == (known.arithmetic(dtype) if multiplies(known, dtype) else None)
