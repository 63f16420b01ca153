"""Requests through models whose answers are known: ends, counts, text, times and bytes."""

import itertools

import pytest
import torch

from inferlab.engine import LLM, SamplingParams, llm
from inferlab.errors import InferlabError

EOS, EOT = 256, 257


def ask(model, prompt="?", **params):
    """Generate and stream the same; return the completion once both agree."""
    params = SamplingParams(**params)
    (whole,) = model.generate(prompt, params)
    stream = model.stream(prompt, params)
    pieces = [piece.text for piece in stream]
    assert "".join(pieces) == whole.text == stream.completion.text
    assert stream.completion.token_ids == whole.token_ids
    assert stream.completion.finish_reason == whole.finish_reason
    assert all(pieces)
    return whole, pieces


# Text


def test_case_1_characters_spread_over_tokens_stream_whole(scripted):
    text = "a😀b 😀 中文"
    model, _ = scripted(text)
    done, pieces = ask(model, max_new_tokens=len(text.encode()))
    assert done.text == text
    assert pieces == list(text)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_case_1_a_cut_character_is_flushed_once_at_the_end(scripted, tokens):
    model, _ = scripted("😀")
    done, pieces = ask(model, max_new_tokens=tokens)
    assert pieces == ["\ufffd"]
    assert (done.output_tokens, done.finish_reason) == (tokens, "length")


def test_case_1_broken_bytes_do_not_hold_later_text_back(scripted):
    model, _ = scripted(b"a\xff\xf0\x9fbc")
    _, pieces = ask(model, max_new_tokens=6)
    assert "".join(pieces) == "a\ufffd\ufffdbc"
    assert pieces[-1] == "c"


# Ends


@pytest.mark.parametrize("declared", [[300, EOT], [EOT, 300], EOT])
def test_case_12_any_token_of_the_eos_list_stops_in_any_order(scripted, declared):
    model, _ = scripted([*b"hi", EOT, *b"more"], eos_token_id=declared)
    done, _ = ask(model)
    assert (done.text, done.finish_reason) == ("hi", "stop")
    assert done.token_ids == [*b"hi", EOT]


def test_case_12_the_tokenizers_end_counts_beside_the_configs(scripted):
    model, _ = scripted([*b"hi", EOS, *b"more"], eos_token_id=EOT)
    assert model.eos_ids == {EOS, EOT}
    assert ask(model)[0].finish_reason == "stop"


def test_case_12_ignore_eos_ignores_all_of_them(scripted):
    model, _ = scripted([*b"hi", EOT, EOS, *b"more"], eos_token_id=EOT)
    done, _ = ask(model, ignore_eos=True, max_new_tokens=8)
    assert (done.text, done.finish_reason) == ("himore", "length")


@pytest.mark.parametrize("limit", [0, 1, 5, 20])
def test_case_14_length_means_exactly_max_new_tokens(scripted, limit):
    model, passes = scripted("abcdefghijklmnopqrstuvwxyz")
    done, _ = ask(model, max_new_tokens=limit)
    assert done.output_tokens == len(done.token_ids) == len(done.token_times) == limit
    assert done.finish_reason == "length"
    assert done.text == "abcdefghijklmnopqrstuvwxyz"[:limit]
    # As many passes as tokens (asked twice): none is run for a token that nobody wants.
    assert len(passes.passes) == 2 * limit


def test_case_14_an_end_token_exactly_at_the_limit_is_a_stop(scripted):
    model, _ = scripted([*b"hi", EOS])
    done, _ = ask(model, max_new_tokens=3)
    assert (done.finish_reason, done.output_tokens) == ("stop", 3)
    assert ask(model, max_new_tokens=2)[0].finish_reason == "length"


def test_a_stop_string_over_several_tokens_ends_the_text_before_it(scripted):
    model, _ = scripted("one END two")
    done, pieces = ask(model, stop="END")
    assert (done.text, done.finish_reason) == ("one ", "stop_string")
    assert bytes(done.token_ids) == b"one END"
    assert pieces == list("one ")


def test_what_could_have_begun_a_stop_string_is_shown_at_the_end(scripted):
    model, _ = scripted([*b"one EN", EOS])
    assert ask(model, stop="END")[0].text == "one EN"
    model, _ = scripted("one EN")
    assert ask(model, stop="END", max_new_tokens=6)[0].text == "one EN"


@pytest.mark.parametrize(("prompt", "fits"), [(30, 3), (31, 2), (32, 1)])
def test_case_29_the_answer_ends_where_the_context_does(scripted, prompt, fits):
    model, passes = scripted("abcdefgh", prompt_tokens=prompt, max_position_embeddings=32)
    done, _ = ask(model, "?" * prompt, max_new_tokens=10)
    assert (done.output_tokens, done.finish_reason) == (fits, "length")
    assert max(itertools.chain(*passes.passes)) == prompt + fits - 2 <= 31


def test_case_29_a_prompt_beyond_the_context_is_refused_before_any_work(scripted):
    model, passes = scripted("a", max_position_embeddings=32)
    for refused in (model.generate, model.stream, model.prefill):
        prompt = [1] * 33 if refused == model.prefill else "?" * 33
        with pytest.raises(InferlabError, match="33 tokens: the model's context holds 32"):
            refused(prompt)
    assert passes.passes == []


def test_case_29_no_step_past_the_context(tiny):
    tiny.prefill(list(range(63)))
    tiny.decode_step([1])
    before = tiny.cache.k.clone()
    with pytest.raises(InferlabError, match="context of 64 tokens is full"):
        tiny.decode_step([1])
    assert torch.equal(tiny.cache.k, before)


# Batches


def prompts_of(*lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lengths]


def test_a_batch_of_different_lengths_gives_the_tokens_of_one_by_one(tiny):
    prompts = prompts_of(3, 17, 1, 9, 30, 2)
    limits = [12, 3, 20, 1, 8, 0]  # rows leave at different times, from both ends
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in limits]
    params[0] = SamplingParams(temperature=1.5, seed=3, max_new_tokens=12, top_p=0.9)
    alone = [tiny.generate(p, own)[0].token_ids for p, own in zip(prompts, params, strict=True)]
    assert len({tuple(ids) for ids in alone}) == 6  # the model does tell them apart
    for batch_size in (6, 4, 1):
        batch = tiny.generate(prompts, params, batch_size=batch_size)
        assert [c.token_ids for c in batch] == alone
    backwards = tiny.generate(prompts[::-1], params[::-1])
    assert [c.token_ids for c in backwards] == alone[::-1]


@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 64])
def test_case_35_chunked_prompts_give_the_tokens_of_whole_ones(tiny, chunk):
    prompts = prompts_of(17, 3, 30, 17)
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (9, 20, 1, 4)]
    whole = [c.token_ids for c in tiny.generate(prompts, params)]
    chunked = tiny.generate(prompts, params, chunk=chunk)
    assert [c.token_ids for c in chunked] == whole


@pytest.mark.parametrize(("chunk", "passes"), [(5, [5, 5, 5, 2]), (16, [16, 1])])
def test_case_35_nothing_comes_of_an_unfinished_chunk_and_neighbours_go_on(
    tiny, monkeypatch, chunk, passes
):
    short, long = (
        tiny.request(ids, SamplingParams(max_new_tokens=12, ignore_eos=True, logprobs=1))
        for ids in prompts_of(2, 17)
    )
    seen = []
    forward = tiny.model.forward

    def watched(ids, positions, cache, **options):
        if ids.shape[1] > 1 or int(positions[0, 0]) == 16:
            seen.append((ids.shape[1], len(short.token_ids)))
            assert [] == long.token_ids == long.token_times == long.logprobs
        return forward(ids, positions, cache, **options)

    monkeypatch.setattr(tiny.model, "forward", watched)
    list(tiny.run([short, long], chunk=chunk))
    assert [count for count, _ in seen[1:]] == passes
    # The neighbour had its first token from its prompt, then one after each pass.
    assert [written for _, written in seen[1:]] == list(range(2, 2 + len(passes)))
    assert len(long.token_ids) == len(long.logprobs) == 12


def test_case_35_a_chunk_of_nothing_is_refused(tiny):
    with pytest.raises(InferlabError, match="chunk must be 1 or more"):
        tiny.generate([1, 2], chunk=0)


def test_steps_give_the_logits_of_one_whole_pass(tiny):
    (ids,) = prompts_of(12)
    cache = llm.ContiguousCache(tiny.model.config, 1, 12)
    whole = tiny.model.forward(torch.tensor([ids]), cache.positions(12), cache, logits="all")
    steps = [tiny.prefill(ids[:5]), *(tiny.decode_step([token]) for token in ids[5:])]
    torch.testing.assert_close(torch.cat(steps), whole[0, 4:], atol=1e-4, rtol=1e-4)


def test_memory_that_grows_on_the_way_changes_no_token(tiny, monkeypatch):
    prompts = prompts_of(3, 8)
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    whole = [c.token_ids for c in tiny.generate(prompts, params)]
    monkeypatch.setattr(llm, "_FIRST_SLOTS", 1)
    grown = [c.token_ids for c in tiny.generate(prompts, params)]
    assert grown == whole


def test_memory_is_not_reserved_for_the_whole_context(tiny):
    request = tiny.request([1, 2, 3], SamplingParams(max_new_tokens=10))
    assert tiny.new_cache([request]).capacity == 12
    long = LLM(tiny.model, kernels="torch")
    long.model.config.__dict__["max_context"] = 64
    assert long.new_cache([long.request([1], SamplingParams(max_new_tokens=5000))]).capacity == 64


def test_one_seed_gives_the_same_tokens_in_any_company(tiny):
    params = SamplingParams(temperature=2.0, seed=11, max_new_tokens=15, ignore_eos=True)
    other = SamplingParams(temperature=2.0, seed=12, max_new_tokens=15, ignore_eos=True)
    (alone,) = tiny.generate([5, 6], params)
    beside = tiny.generate([[1], [5, 6], [5, 6]], [other, params, other])
    assert beside[1].token_ids == alone.token_ids != beside[2].token_ids


def test_case_6_greedy_and_sampled_rows_share_a_batch(tiny):
    greedy, hot = SamplingParams(max_new_tokens=9), SamplingParams(temperature=0.7, seed=0)
    alone = tiny.generate([7, 8], greedy)[0].token_ids
    assert tiny.generate([[7, 8], [7, 8]], [greedy, hot])[0].token_ids == alone


def test_without_numba_the_same_tokens_come_from_torch(tiny, monkeypatch):
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    want = tiny.generate([3, 4, 5], params)[0].token_ids
    monkeypatch.setenv("INFERLAB_HIDE", "numba")
    plain = LLM(tiny.model, tiny.tokenizer)
    assert not plain.simd
    assert plain.generate([3, 4, 5], params)[0].token_ids == want
    with pytest.raises(InferlabError, match="simd needs numba"):
        LLM(tiny.model, kernels="simd")


# Numbers


def test_times_follow_their_definitions(scripted, monkeypatch):
    model, _ = scripted("abcd")
    clock = itertools.count(start=100, step=2)
    monkeypatch.setattr(llm.time, "perf_counter", lambda: next(clock))
    (done,) = model.generate("?", SamplingParams(max_new_tokens=4))
    assert done.token_times == [2, 4, 6, 8]
    assert (done.ttft_s, done.tpot_s, done.tokens_per_second) == (2, 2, 0.5)
    (one,) = model.generate("?", SamplingParams(max_new_tokens=1))
    assert (one.ttft_s, one.tpot_s, one.tokens_per_second) == (2, None, None)
    (none,) = model.generate("?", SamplingParams(max_new_tokens=0))
    assert (none.ttft_s, none.tpot_s, none.bytes_per_token) == (None, None, None)


def test_bytes_are_weights_shared_by_the_rows_and_each_rows_own_keys_and_values(scripted):
    model, _ = scripted("abcdef")
    # 2 layers, 2 KV heads of 8, K and V, 8 bytes (the script is float64): 512 a position.
    (done,) = model.generate("???", SamplingParams(max_new_tokens=4))
    assert done.weight_bytes_per_token == 1000
    assert done.kv_read_bytes_per_token == 512 * (3 + 4 + 5) / 3
    assert done.bytes_per_token == 1000 + 512 * 4
    assert done.achieved_bytes_per_second == done.bytes_per_token / done.tpot_s
    two = model.generate(
        ["?", "???"], [SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=4)]
    )
    assert [c.weight_bytes_per_token for c in two] == [500, (500 + 1000 + 1000) / 3]
    assert [c.kv_read_bytes_per_token for c in two] == [512, 512 * 4]


def test_logprobs_come_one_a_token(tiny):
    params = SamplingParams(temperature=1e-3, top_k=1, logprobs=5, max_new_tokens=6)
    (done,) = tiny.generate([1, 2, 3], params)
    assert [lp.token_id for lp in done.logprobs] == done.token_ids
    for at in done.logprobs:
        assert at.top[at.token_id] == at.logprob == max(at.top.values()) <= 0
        assert len(at.top) == 5
    raw = tiny.prefill([1, 2, 3])[0].log_softmax(-1)
    assert done.logprobs[0].logprob == pytest.approx(float(raw.max()), abs=1e-6)
    assert tiny.generate([1], SamplingParams(max_new_tokens=1))[0].logprobs is None


def test_a_stream_that_is_left_keeps_what_came(scripted):
    model, _ = scripted("abcdef")
    stream = model.stream("?", SamplingParams(max_new_tokens=6))
    for piece in stream:
        if piece.text == "c":
            break
    done = stream.completion
    assert (done.text, done.output_tokens, done.finish_reason) == ("abc", 3, None)


# Bad input


def test_bad_prompts_are_refused_by_name(tiny):
    for prompt, words in [
        ("", "prompt is empty"),
        ([[]], "prompt is empty"),
        ([258], "token id 258: ids go from 0 to 257"),
        ([[1, -1]], "token id -1"),
        ([[1, 2.0]], "token id 2.0"),
        ([["a"]], "token id 'a'"),
    ]:
        with pytest.raises(InferlabError, match=words):
            tiny.generate(prompt)
    assert tiny.generate([]) == []
    with pytest.raises(InferlabError, match="params has 1 entries for 2 prompts"):
        tiny.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(InferlabError, match="it must be SamplingParams"):
        tiny.generate("a", {"max_new_tokens": 2})
    for prompts in (None, 5):
        with pytest.raises(InferlabError, match=f"prompts is {prompts}"):
            tiny.generate(prompts)
    with pytest.raises(InferlabError, match="no tokenizer"):
        LLM(tiny.model).generate("a")
    with pytest.raises(InferlabError, match="call prefill first"):
        LLM(tiny.model).decode_step([1])


def test_weights_that_are_not_numbers_are_an_error(tiny):
    tiny.model.weights.norm[3] = float("nan")
    with pytest.raises(InferlabError, match="not finite"):
        tiny.generate([1, 2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"kernels": "cobol"}, "unknown kernels 'cobol'"),
        ({"quantize": "q7"}, "unknown quantize 'q7'"),
        ({"activations": "int4"}, "unknown activations 'int4'"),
        ({"threads": 0}, "threads must be a whole number from 1"),
        ({"source": "no-such-model"}, "no such model"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_read(options, words, monkeypatch):
    def never(*_):
        raise AssertionError("read a checkpoint")

    monkeypatch.setattr(llm.checkpoint, "open", never)
    with pytest.raises(InferlabError, match=words):
        LLM.load(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(InferlabError, match="no CUDA GPU"):
        LLM.load(device="cuda")
