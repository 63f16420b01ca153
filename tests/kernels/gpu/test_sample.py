"""The sampling kernels against their float64 oracle, and against the engine's own sampler."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from inferlab.engine.sampling import support
from inferlab.errors import InferlabError
from inferlab.kernels import ops, reference
from inferlab.kernels.gpu import sample as gpu
from inferlab.kernels.gpu.compiled import TARGETS

INF = math.inf


def column(values, rows, dtype):
    return torch.tensor([values] * rows if isinstance(values, int | float) else values, dtype=dtype)


def parameters(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=3, offsets=0):
    return (
        column(temperature, rows, torch.float32),
        column(top_k, rows, torch.int32),
        column(top_p, rows, torch.float64),
        column(min_p, rows, torch.float64),
        column(seeds, rows, torch.int64),
        column(offsets, rows, torch.int64),
    )


def sample(device, logits, *given, **hints):
    """What `launch` makes of it, in scratch and outputs that begin as nonsense."""
    logits, *given = (t.to(device) for t in (logits, *given))
    scratch = gpu.scratch(*logits.shape, device)
    for memory in scratch:
        memory.fill_(math.nan if memory.is_floating_point() else -(2**31))
    out = torch.full((len(logits),), -99, device=device)
    return gpu.launch(logits, gpu.Parameters(*given), out, scratch, **hints).cpu()


def offset_with(low, high, seed=3):
    """An offset whose random number, as a share, lies between."""
    shares = ((o, reference.philox(seed, o) / 2**64) for o in itertools.count())
    return next(o for o, share in shares if low <= share < high)


FILTERS = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10**6},
    {"top_p": 1e-6},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1e-7, "top_p": 0.9},
)


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        (129, torch.float32),
        (127, torch.float16),
        pytest.param(2049, torch.float32, marks=pytest.mark.slow),
        pytest.param(1, torch.float32, marks=pytest.mark.slow),
        pytest.param(4097, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_every_filter_in_one_batch(device, dtype, vocab):
    generator = torch.Generator().manual_seed(vocab)
    rows = len(FILTERS)
    logits = (3 * torch.randn(rows, vocab, generator=generator)).to(dtype)
    logits[:, 5::7] = logits[:, :1]  # ties
    logits[:, 3::11] = -INF
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    columns = {k: [f.get(k, v) for f in FILTERS] for k, v in defaults.items()}
    given = parameters(rows, **columns, seeds=[11 * i for i in range(rows)], offsets=2)
    want = reference.sample(logits.float(), *given)
    assert sample(device, logits, *given).tolist() == want.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_filter_of_many_rows(device, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, vocab = 24, 5000

    def pick(*values):
        return [values[i] for i in torch.randint(len(values), (rows,), generator=generator)]

    logits = (2 * torch.randn(rows, vocab, generator=generator)).round(decimals=1)  # many ties
    given = parameters(
        rows,
        temperature=pick(0.0, 0.5, 1.0, 2.0),
        top_k=pick(0, 0, 1, 40, 1000, 4999),
        top_p=pick(1.0, 1.0, 0.1, 0.9, 0.999),
        min_p=pick(0.0, 0.0, 0.01, 0.5),
        seeds=pick(0, 1, 2**62, -5),
        offsets=[*range(rows)],
    )
    want = reference.sample(logits, *given)
    assert sample(device, logits, *given).tolist() == want.tolist()


@pytest.mark.parametrize("size", [49152, pytest.param(151_936, marks=pytest.mark.slow)])
def test_whole_vocabularies(device, size):
    logits = 3 * torch.randn(2, size, generator=torch.Generator().manual_seed(size))
    given = parameters(2, temperature=[0.0, 1.3], min_p=0.001)
    got = sample(device, logits, *given, search_k=False, search_p=False)
    assert got.tolist() == reference.sample(logits, *given).tolist()


@pytest.mark.slow
def test_a_large_vocabulary_with_filters(device):
    logits = 3 * torch.randn(2, 151_936, generator=torch.Generator().manual_seed(1))
    given = parameters(2, temperature=1.5, top_k=[0, 5000], top_p=[0.95, 0.9])
    assert sample(device, logits, *given).tolist() == reference.sample(logits, *given).tolist()


CASES = (
    ([0.5, 0.3, 0.15, 0.05], {"top_p": 0.6}, {0, 1}),
    ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.8}, {0, 1, 2}),
    ([0.5, 0.41, 0.09], {"top_p": 0.9}, {0, 1}),
    ([0.25] * 4, {"top_p": 0.5}, {0, 1}),
    ([0.05, 0.95], {"top_p": 1e-9}, {1}),
    ([0.1] * 10, {"top_p": 0.6}, {0, 1, 2, 3, 4, 5}),
    ([0.25] * 4, {"top_k": 3}, {0, 1, 2}),
    ([0.1, 0.4, 0.1, 0.4], {"top_k": 3}, {0, 1, 3}),
    ([0.3, 0.4, 0.3], {"top_k": 2}, {0, 1}),
    ([0.5, 0.3, 0.2], {"top_k": 2, "top_p": 0.6}, {0}),  # 0.5 / 0.8 holds 0.6 already
    ([0.5, 0.3, 0.15, 0.05], {"min_p": 0.6}, {0, 1}),
)


def test_case_7_the_nucleus_keeps_the_token_that_crosses(device):
    """A random share near 0 takes the lowest id of those that are left, one near 1 the highest."""
    logits = torch.full((2, len(CASES), 10), -INF)
    for row, (probs, _, _) in enumerate(CASES):
        logits[:, row, : len(probs)] = torch.tensor(probs).log()
    keys = (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
    columns = {k: 2 * [filters.get(k, v) for _, filters, _ in CASES] for k, v in keys}
    offsets = [offset_with(0, 0.01)] * len(CASES) + [offset_with(0.99, 1)] * len(CASES)
    got = sample(
        device, logits.flatten(0, 1), *parameters(len(offsets), **columns, offsets=offsets)
    )
    assert got.tolist() == [edge(stay) for edge in (min, max) for _, _, stay in CASES]


def test_case_6_greedy_rows_with_impossible_tokens_beside_sampled_rows(device):
    logits = torch.tensor(
        [[1.0, 3.0, 2.0], [-INF, 1.0, -INF], [1.0, -INF, 2.0], [2.0, 3.0, 3.0], [-0.0, 0.0, -INF]]
    )
    for offset in range(4):
        given = parameters(5, temperature=[0.0, 0.0, 0.7, 0.0, 0.0], offsets=offset)
        got = sample(device, logits, *given, search_k=False, search_p=False).tolist()
        assert got[:2] == [1, 1]
        assert got[2] in (0, 2)
        assert got[3:] == [1, 0]  # of equal logits the lowest id


def test_rows_that_are_not_numbers_are_marked_and_harm_no_other(device):
    logits = torch.randn(6, 2100, generator=torch.Generator().manual_seed(0))
    logits[1, 2050], logits[2, 7], logits[3] = math.nan, INF, -INF
    logits[4, 2060] = math.nan
    given = parameters(6, temperature=[1.0, 1.0, 1.0, 1.0, 0.0, 0.0], top_k=5, top_p=0.9)
    got, want = sample(device, logits, *given), reference.sample(logits, *given)
    assert got.tolist() == want.tolist()
    assert got[1:5].tolist() == [-1] * 4


def test_a_row_draws_the_same_token_alone_and_in_a_batch(device):
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2))
    given = parameters(
        4, temperature=[0.5, 1.0, 2.0, 0.0], top_k=[0, 9, 0, 3], top_p=[0.9, 0.8, 1.0, 1.0],
        seeds=[1, 2, 3, 4], offsets=[9, 8, 7, 6],
    )  # fmt: skip
    together = sample(device, logits, *given)
    one = slice(1, 2)
    assert sample(device, logits[one], *(p[one] for p in given)) == together[one]


@pytest.mark.parametrize(
    ("min_p", "draws"), [(0.2, 80), pytest.param(0.0, 1000, marks=pytest.mark.slow)]
)
def test_frequencies_follow_the_distribution_that_is_left(device, min_p, draws):
    scores = torch.tensor([0.0, 1.0, 2.0, -INF, 1.5, -1.0, 0.5, 2.0])
    temperature = 1.7
    given = parameters(draws, temperature=temperature, min_p=min_p, offsets=[*range(draws)])
    logits = scores.expand(draws, -1).contiguous()
    got = sample(device, logits, *given, search_k=False, search_p=False)
    probs = (scores.double() / temperature).softmax(-1)[None]
    left = support(
        probs,
        top_k=torch.tensor([[0]]),
        top_p=torch.tensor([[1.0]]).double(),
        min_p=torch.tensor([[min_p]]).double(),
    )[0]
    expected = torch.where(left, probs[0], 0)
    expected = draws * expected / expected.sum()
    counts = torch.bincount(got, minlength=8)
    assert counts[expected == 0].sum() == 0
    chosen = expected > 0
    statistic = ((counts - expected)[chosen] ** 2 / expected[chosen]).sum()
    assert statistic < 24.3  # chi-square of 7 degrees exceeds it once in a thousand times


def test_the_random_numbers_are_philox():
    assert reference.philox(0, 0) == 0x6627E8D5E169C58D  # Random123's known answer


def test_strides(device):
    logits = torch.full((3, 90), math.nan)
    logits[:, :50] = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    given = parameters(3, top_k=[0, 4, 0], top_p=[0.7, 1.0, 1.0])
    got = sample(device, logits[:, :50], *given)
    assert got.tolist() == reference.sample(logits[:, :50], *given).tolist()


def test_the_entry_point(device):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2)).to(device)
    given = parameters(3, temperature=[0.0, 1.0, 1.0], top_k=[0, 4, 0], top_p=[1.0, 1.0, 0.5])
    want = reference.sample(logits.cpu(), *given).tolist()
    for backend in ("triton", "torch"):
        assert ops.sample(logits, *given, backend=backend).tolist() == want
        none = ops.sample(logits[:0], *(p[:0] for p in given), backend=backend)
        assert none.shape == (0,)
    with pytest.raises(InferlabError, match=r"top_p has shape \[2\]; it must be \[3\]"):
        ops.sample(logits, *given[:2], given[2][:2], *given[3:])
    with pytest.raises(InferlabError, match="nothing to sample from"):
        ops.sample(logits[:, :0], *given)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_its_kernels(name):
    kernels = {case.kernel.fn.__name__ for case in gpu.aot(TARGETS[name])}
    assert kernels == {f"{k}_kernel" for k in ("peaks", "count", "pick", "mass", "draw")}
