"""The sampler: filters against a naive reading of their definitions, and rows that do not meet."""

import json
import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.engine.sampling import SamplingParams, logprobs_of, sample, support
from inferlab.errors import InferlabError

INF = math.inf


def kept(probs, *, top_k=0, top_p=1.0, min_p=0.0):
    rows = torch.tensor([probs], dtype=torch.float64)
    mask = support(
        rows,
        top_k=torch.tensor([[top_k]]),
        top_p=torch.tensor([[top_p]], dtype=torch.float64),
        min_p=torch.tensor([[min_p]], dtype=torch.float64),
    )
    return set(mask[0].nonzero().flatten().tolist())


def naive(probs, top_k, top_p, min_p):
    """The filters, one token at a time."""
    order = sorted((i for i, p in enumerate(probs) if p > 0), key=lambda i: (-probs[i], i))
    left = order[:top_k] if top_k else order
    total = math.fsum(probs[i] for i in left) if top_k else 1.0
    nucleus, held = [], 0.0
    for i in left:
        if top_p < 1 and held >= top_p * total:
            break
        nucleus.append(i)
        held += probs[i]
    return {i for i in nucleus if probs[i] >= min_p * probs[order[0]]}


# Whole weights over a power of two: sums are exact, so that edges are edges and ties are ties.
shares = st.lists(st.integers(0, 16), min_size=1, max_size=40).filter(any)


@given(shares, st.integers(0, 45), st.integers(1, 64), st.sampled_from([0, 0.125, 0.5, 1]))
@settings(max_examples=300, deadline=None)
def test_filters_keep_what_their_definitions_say(weights, top_k, top_p, min_p):
    scale = 2 ** math.ceil(math.log2(sum(weights)))
    probs = [w / scale for w in weights]
    probs.append(1 - sum(probs))  # exact in binary
    assert kept(probs, top_k=top_k, top_p=top_p / 64, min_p=min_p) == naive(
        probs, top_k, top_p / 64, min_p
    )


@pytest.mark.parametrize(
    ("probs", "top_p", "want"),
    [
        ([0.5, 0.3, 0.15, 0.05], 0.6, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}),
        ([0.5, 0.41, 0.09], 0.9, {0, 1}),
        ([0.25] * 4, 0.5, {0, 1}),
        ([0.05, 0.95], 1e-9, {1}),
    ],
)
def test_case_7_the_nucleus_keeps_the_token_that_crosses(probs, top_p, want):
    assert kept(probs, top_p=top_p) == want


def test_top_p_over_a_large_vocabulary_is_the_smallest_set_that_reaches_it():
    torch.manual_seed(0)
    probs = (3 * torch.randn(50_000, dtype=torch.float64)).softmax(-1)
    mass, order = probs.sort(descending=True)
    for top_p in (0.1, 0.9, 0.999):
        fewest = int((mass.cumsum(-1) < top_p).sum()) + 1
        assert kept(probs.tolist(), top_p=top_p) == set(order[:fewest].tolist())


def test_case_6_greedy_rows_with_impossible_tokens_beside_sampled_rows():
    logits = torch.tensor([[1.0, 3.0, 2.0], [-INF, 1.0, -INF], [1.0, -INF, 2.0]])
    params = [SamplingParams(), SamplingParams(), SamplingParams(temperature=0.7, seed=1)]
    for draw in range(50):
        tokens = sample(logits, params, [Random(draw) for _ in params])
        assert tokens[:2] == [1, 1]
        assert tokens[2] in (0, 2)


def test_a_greedy_row_takes_the_same_of_equal_tokens_always_and_no_random_number():
    random = Random(5)
    assert {
        sample(torch.tensor([[2.0, 3.0, 3.0]]), [SamplingParams()], [random])[0] for _ in range(30)
    } == {1}
    assert random.random() == Random(5).random()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1e-300, 1e-3, 0.7, 1.0, 5.0]),
            st.integers(0, 12),
            st.sampled_from([1e-6, 0.5, 0.95, 1.0]),
            st.sampled_from([0.0, 0.1, 1.0]),
            st.integers(0, 2**70),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_a_row_draws_the_same_token_alone_and_in_any_batch(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(len(rows), 10, generator=generator)
    logits[logits < -4] = -INF
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=s) for t, k, p, m, s in rows
    ]
    together = sample(logits, params, [Random(p.seed) for p in params])
    alone = [sample(logits[i : i + 1], [p], [Random(p.seed)])[0] for i, p in enumerate(params)]
    assert together == alone
    assert all(logits[i, token] > -INF for i, token in enumerate(together))


def test_frequencies_follow_the_softmax_at_the_temperature():
    logits = torch.tensor([[0.0, 1.0, 2.0, -INF]])
    random, params = Random(0), SamplingParams(temperature=2.0)
    drawn = [sample(logits, [params], [random])[0] for _ in range(4000)]
    want = (logits[0] / 2).softmax(-1)
    for token in range(4):
        # Four standard deviations of a share of 4000 draws are at most 0.032.
        assert abs(drawn.count(token) / 4000 - float(want[token])) < 0.032


def test_min_p_and_top_k_limit_what_is_drawn():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    random = Random(0)
    for params, want in [
        (SamplingParams(temperature=1, min_p=0.4), {0, 1}),
        (SamplingParams(temperature=1, top_k=3), {0, 1, 2}),
        (SamplingParams(temperature=1, top_k=1), {0}),
        (SamplingParams(temperature=1, top_k=3, top_p=0.6), {0, 1}),
    ]:
        assert {sample(logits, [params], [random])[0] for _ in range(300)} == want


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_logits_that_are_not_numbers_are_an_error_that_names_the_row(bad):
    logits = torch.tensor([[1.0, 2.0], [1.0, bad]])
    for params in (SamplingParams(), SamplingParams(temperature=1)):
        with pytest.raises(InferlabError, match="row 1"):
            sample(logits, [params] * 2, [Random(0), Random(0)])


def test_a_row_where_nothing_is_possible_is_an_error():
    with pytest.raises(InferlabError, match="row 0"):
        sample(torch.full((1, 3), -INF), [SamplingParams()], [Random(0)])


def test_case_11_logprobs_are_raw_finite_and_list_the_sampled_token():
    logits = torch.tensor([2.0, 1.0, -INF, -INF, -INF, 0.0])
    found = logprobs_of(logits, token=5, alternatives=5)
    json.dumps([found.logprob, found.top], allow_nan=False)
    assert list(found.top) == [0, 1, 5]
    assert found.top[5] == found.logprob <= 0
    assert math.fsum(math.exp(v) for v in found.top.values()) == pytest.approx(1, abs=1e-6)
    assert list(logprobs_of(logits, token=1, alternatives=1).top) == [0, 1]
    assert list(logprobs_of(logits, token=1, alternatives=0).top) == [1]


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "temperature": [-1, math.nan, INF, "1", None, True],
        "top_k": [-1, 2.0, "5", None, True],
        "top_p": [0, -0.1, 1.5, math.nan, "1"],
        "min_p": [-0.1, 1.1, math.nan],
        "seed": [-1, 1.5, "7", True],
        "max_new_tokens": [-1, 1.0, "8", None],
        "stop": ["", [""], [1], 5, None, ["a", ""]],
        "ignore_eos": [1, "yes", None],
        "logprobs": [-1, 21, 1.5, True],
    }.items(),
)
def test_bad_values_name_the_field(field, values):
    for value in values:
        with pytest.raises(InferlabError, match=field) as caught:
            SamplingParams(**{field: value})
        assert "\n" not in str(caught.value)


def test_one_stop_string_and_a_list_of_them_are_both_taken():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
