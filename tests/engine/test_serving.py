"""The engine for many requests: the same tokens as alone, under any schedule."""

import json

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from inferlab.engine import LLM, SamplingParams, trace
from inferlab.engine.serving import Engine
from inferlab.errors import InferlabError
from inferlab.kernels import backends

EOS = 256


def drain(engine):
    """Step until all is done, checking the invariants; return the steps it took."""
    steps = 0
    while engine.busy:
        engine.step()
        engine.check()
        steps += 1
        assert steps < 2000, "the engine does not come to an end"
    return steps


def alone(llm, prompt, params):
    (whole,) = llm.generate([prompt], params)
    return whole


def greedy(tokens, **more):
    return SamplingParams(max_new_tokens=tokens, ignore_eos=True, **more)


def assert_same(request, whole):
    done = request.completion()
    assert done.token_ids == whole.token_ids
    assert (done.text, done.finish_reason) == (whole.text, whole.finish_reason)


def test_requests_together_get_what_they_get_alone(tiny):
    engine = Engine(tiny, kv_tokens=400, block=4, max_batch=3, step_tokens=9)
    prompts = [list(range(n, n + size)) for n, size in enumerate((1, 5, 17, 30, 2, 16))]
    requests = [engine.submit(p, greedy(12)) for p in prompts]
    drain(engine)
    for prompt, request in zip(prompts, requests, strict=True):
        assert_same(request, alone(tiny, prompt, greedy(12)))
    assert engine.blocks.free == engine.blocks.total
    assert engine.preemptions == 0


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 12),  # the step in which it arrives
            st.lists(st.integers(0, 1), min_size=1, max_size=40),  # so prefixes are shared
            st.integers(1, 20),
            st.none() | st.integers(0, 30),  # the step in which it is cancelled
        ),
        min_size=1,
        max_size=8,
    ),
    blocks=st.integers(15, 40),
    size=st.sampled_from([4, 8]),
    max_batch=st.integers(1, 5),
    spare=st.integers(1, 20),
    reuse=st.booleans(),
)
def test_any_arrivals_lengths_and_cancellations(tiny, jobs, blocks, size, max_batch, spare, reuse):
    engine = Engine(
        tiny,
        kv_tokens=max(blocks * 4, 60),
        block=size,
        max_batch=max_batch,
        step_tokens=max_batch + spare,
        prefix_reuse=reuse,
    )
    requests, step = {}, 0
    while step <= 12 or engine.busy:
        for index, (arrival, prompt, tokens, cancelled) in enumerate(jobs):
            if arrival == step:
                requests[index] = engine.submit(prompt, greedy(tokens))
            if cancelled == step and index in requests:
                engine.cancel(requests[index])
        engine.step()
        engine.check()
        step += 1
        assert step < 2000
    assert engine.blocks.free == engine.blocks.total
    for index, (_, prompt, tokens, _) in enumerate(jobs):
        request, whole = requests[index], alone(tiny, prompt, greedy(tokens))
        got = request.token_ids
        if request.finish_reason == "cancelled":
            assert got == whole.token_ids[: len(got)]
        else:
            assert_same(request, whole)
        assert [e.kind for e in request.events][-1] == "finished"


def test_a_cache_too_small_preempts_the_youngest_and_all_end_as_they_should(tiny):
    engine = Engine(tiny, kv_tokens=64, block=4, max_batch=4, step_tokens=32)
    prompts = [[n] * 8 for n in range(4)]
    requests = [engine.submit(p, greedy(40)) for p in prompts]
    drain(engine)
    assert engine.preemptions > 0
    for prompt, request in zip(prompts, requests, strict=True):
        assert_same(request, alone(tiny, prompt, greedy(40)))
    kinds = [[e.kind for e in r.events] for r in requests]
    assert "preempted" not in kinds[0]
    assert "preempted" in kinds[-1]
    ends = [r.events[-1].time_s for r in requests]
    assert ends == sorted(ends)


def test_sampling_has_a_seed_of_its_own_whoever_is_beside(tiny):
    params = [
        SamplingParams(temperature=t, seed=s, max_new_tokens=20, ignore_eos=True, top_k=50)
        for t, s in ((0.8, 1), (0.0, None), (1.2, 3), (0.8, 1))
    ]
    engine = Engine(tiny, kv_tokens=80, block=4, max_batch=4, step_tokens=16)
    requests = [engine.submit([5, 6, 7], p) for p in params]
    drain(engine)
    for request, own in zip(requests, params, strict=True):
        assert_same(request, alone(tiny, [5, 6, 7], own))
    assert requests[0].token_ids == requests[3].token_ids


@pytest.mark.parametrize("length", [16, 17, 15])
def test_case_32_a_prompt_that_is_cached_as_a_whole(tiny, length):
    engine = Engine(tiny, kv_tokens=200, block=4)
    prompt = list(range(16))[:length] + [99] * (length - 16)
    first = engine.submit(prompt, greedy(6))
    drain(engine)
    second = engine.submit(prompt, greedy(6))
    drain(engine)
    assert second.token_ids == first.token_ids
    assert first.cached_tokens == 0
    assert second.cached_tokens == (length - 1) // 4 * 4 <= length - 1
    (chunk,) = [e for e in second.events if e.kind == "chunk"]
    assert chunk.tokens == length - second.cached_tokens >= 1


def test_an_answer_is_part_of_the_prefix_of_the_next_turn(tiny):
    engine = Engine(tiny, kv_tokens=200, block=4)
    first = engine.submit(list(range(10)), greedy(12))
    drain(engine)
    follow = [*first.ids, 3, 4]
    second = engine.submit(follow, greedy(5))
    drain(engine)
    assert second.cached_tokens == 20  # of 21 positions that the first turn computed
    assert_same(second, alone(tiny, follow, greedy(5)))


@pytest.mark.parametrize(("chunk", "sizes"), [(5, [5, 5, 5, 2]), (16, [16, 1])])
def test_case_35_an_unfinished_chunk_says_nothing_and_stops_nobody(tiny, chunk, sizes):
    engine = Engine(tiny, kv_tokens=300, block=4, max_batch=3, step_tokens=chunk + 2)
    neighbours = [engine.submit([n], greedy(30)) for n in (1, 2)]
    engine.step()
    request = engine.submit(list(range(17)), greedy(5, logprobs=1))
    for index, size in enumerate(sizes):
        before = [len(n.token_ids) for n in neighbours]
        touched = engine.step()
        assert [len(n.token_ids) for n in neighbours] == [n + 1 for n in before]
        assert request.events[-2 if index == len(sizes) - 1 else -1].tokens == size
        done = index == len(sizes) - 1
        assert (request in touched) == bool(request.token_ids) == bool(request.logprobs) == done
        assert len(request.token_times) == done
    drain(engine)
    assert_same(request, alone(tiny, list(range(17)), greedy(5)))


def test_a_long_prompt_does_not_hold_up_those_who_write_and_nobody_starves(tiny):
    """Short requests keep coming; the long one, and then each of them, gets its turn in order."""
    engine = Engine(tiny, kv_tokens=200, block=4, max_batch=3, step_tokens=8)
    requests = [engine.submit([1], greedy(8))]
    requests.append(engine.submit(list(range(50)), greedy(3)))
    for step in range(60):
        if step % 3 == 0:
            requests.append(engine.submit([step], greedy(4)))
        engine.step()
        engine.check()
    drain(engine)
    scheduled = [next(e.time_s for e in r.events if e.kind == "scheduled") for r in requests]
    assert scheduled == sorted(scheduled)
    assert all(r.finish_reason == "length" for r in requests)


def test_ends_stop_strings_and_nothing_to_do(tiny):
    engine = Engine(tiny, kv_tokens=400, block=4)
    whole = alone(tiny, [8, 9], greedy(20))
    stop = chr(whole.token_ids[3]) if whole.token_ids[3] < 128 else None
    nothing = engine.submit([1, 2], SamplingParams(max_new_tokens=0))
    assert nothing.done
    assert engine.busy
    assert engine.step() == [nothing]
    if stop:
        request = engine.submit([8, 9], greedy(20, stop=(stop,)))
        drain(engine)
        assert_same(request, alone(tiny, [8, 9], greedy(20, stop=(stop,))))
    assert engine.step() == []
    assert not engine.busy


def test_cancelling_frees_blocks_at_once_and_twice_is_once(tiny):
    engine = Engine(tiny, kv_tokens=100, block=4, max_batch=1)
    runs, waits = engine.submit([1] * 9, greedy(30)), engine.submit([2] * 9, greedy(30))
    engine.step()
    for request in (waits, runs, runs):
        engine.cancel(request)
        engine.check()
    assert engine.blocks.free == engine.blocks.total
    assert engine.step() == [waits, runs]
    assert not engine.busy
    assert runs.finish_reason == waits.finish_reason == "cancelled"
    assert len(runs.token_ids) == 1


def test_the_whole_cache_for_one_answer_and_a_prompt_that_is_longer(tiny):
    engine = Engine(tiny, kv_tokens=16, block=4)
    request = engine.submit([1] * 10, greedy(40))
    drain(engine)
    assert request.finish_reason == "length"
    assert request.token_ids == alone(tiny, [1] * 10, greedy(7)).token_ids
    with pytest.raises(InferlabError, match="prompt has 17 tokens: the whole KV cache holds 16"):
        engine.submit([1] * 17, greedy(1))
    for prompt, message in ((list(range(65)), "context holds 64"), ([], "empty"), ([-1], "-1")):
        with pytest.raises(InferlabError, match=message):
            engine.submit(prompt)
    assert not engine.busy


def test_bad_settings(tiny):
    for settings_, message in (
        ({"block": 0}, "block must be 1 or more"),
        ({"kv_tokens": 0}, "kv_tokens must be 1 or more"),
        ({"max_batch": 0}, "max_batch must be 1 or more"),
        ({"max_batch": 8, "step_tokens": 8}, "step_tokens must be more than max_batch, 8"),
    ):
        with pytest.raises(InferlabError, match=message):
            Engine(tiny, **settings_)


class BrokenRow:
    """A model whose logits are NaN for whoever's last token is 13."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, ids, positions, cache, **more):
        logits = self._model.forward(ids, positions, cache, **more).clone()
        logits[ids[:, -1] == 13] = float("nan")
        return logits


def test_a_row_that_breaks_ends_alone(tiny):
    if tiny.kernels != "torch":
        pytest.skip("the broken model decodes by torch")
    llm = LLM(BrokenRow(tiny.model), tiny.tokenizer, kernels="torch")
    engine = Engine(llm, kv_tokens=100, block=4)
    broken, fine = engine.submit([1, 13], greedy(5)), engine.submit([1, 2], greedy(5))
    drain(engine)
    assert broken.finish_reason == "error"
    assert "not finite" in broken.error
    assert_same(fine, alone(tiny, [1, 2], greedy(5)))


@pytest.mark.skipif(not backends.has_numba(), reason="numba is not here")
def test_more_rows_than_a_step_of_ours_takes(tiny):
    engine = Engine(tiny, kv_tokens=800, block=8, max_batch=20, step_tokens=64)
    requests = [engine.submit([n, n + 1], greedy(8)) for n in range(20)]
    drain(engine)
    for n, request in enumerate(requests):
        assert_same(request, alone(tiny, [n, n + 1], greedy(8)))


@pytest.mark.parametrize("kernels", ["torch", "simd"])
@pytest.mark.parametrize(
    "fields",
    [
        {"max_position_embeddings": 512},
        {"max_position_embeddings": 512, "model_type": "mistral", "sliding_window": 9},
    ],
    ids=["long", "window"],
)
def test_long_contexts_and_windows(random_model, kernels, fields):
    if kernels == "simd" and not backends.has_numba():
        pytest.skip("no numba here")
    llm = LLM(random_model(**fields), kernels=kernels)
    engine = Engine(llm, kv_tokens=1200, block=16, max_batch=4, step_tokens=64)
    prompts = [
        [(n * 7 + i) % 250 for i in range(size)] for n, size in enumerate((300, 3, 130, 127))
    ]
    requests = [engine.submit(p, greedy(10)) for p in prompts]
    drain(engine)
    for prompt, request in zip(prompts, requests, strict=True):
        assert_same(request, alone(llm, prompt, greedy(10)))


def test_traces(tiny):
    engine = Engine(tiny, kv_tokens=64, block=4, max_batch=4, step_tokens=8)
    requests = [engine.submit([n] * 8, greedy(30)) for n in range(4)]
    drain(engine)
    for request in requests:
        times = [e.time_s for e in request.events]
        assert times == sorted(times)
        kinds = [e.kind for e in request.events]
        assert (kinds[0], kinds[-1]) == ("arrived", "finished")
        assert kinds.count("token") == len(request.token_ids)
        assert kinds.count("scheduled") == 1 + kinds.count("preempted")
        lost = sum(e.tokens for e in request.events if e.kind == "preempted")
        read = sum(e.tokens for e in request.events if e.kind in ("chunk", "scheduled"))
        steps = sum(e.began_s is not None for e in request.events if e.kind == "token")
        assert read + steps - lost == request.length - 1
    told = json.loads(json.dumps(trace.as_dicts(requests), allow_nan=False))
    assert [r["id"] for r in told] == [1, 2, 3, 4]
    assert told[0]["events"][0] == {"time_s": 0, "kind": "arrived"}
    made = json.loads(json.dumps(trace.chrome(requests), allow_nan=False))
    slices = [e for e in made["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in slices} == {"waiting", "prefill", "decode step"}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)
    assert {e["tid"] for e in slices} == {1, 2, 3, 4}


def test_bytes_of_steps_are_shared_by_their_rows(tiny):
    engine = Engine(tiny, kv_tokens=200, block=4)
    requests = [engine.submit([n] * 4, greedy(6)) for n in range(2)]
    drain(engine)
    for request in requests:
        done = request.completion()
        assert done.weight_bytes_per_token == tiny.model.streamed_bytes / 2
        assert done.kv_read_bytes_per_token > 0


def test_tokens_of_the_cache_by_default(tiny):
    engine = Engine(tiny)
    assert engine.blocks.total * engine.blocks.size == 16 * 64  # its whole context for each row
    assert torch.equal(engine.cache.k, torch.zeros_like(engine.cache.k))
