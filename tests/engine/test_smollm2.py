"""The real model through the engine: a few sentences that have to come out right."""

import pytest

from inferlab.engine import LLM, SamplingParams

FRANCE = "What is the capital of France?"


def chat_ids(llm, text):
    return llm.tokenizer.chat([{"role": "user", "content": text}])


def test_it_knows_the_capital_of_france(smollm2):
    ids = chat_ids(smollm2, FRANCE)
    (done,) = smollm2.generate(ids)
    assert done.text == "The capital of France is Paris."
    assert (done.finish_reason, done.prompt_tokens, done.output_tokens) == ("stop", 37, 8)
    stream = smollm2.stream(ids)
    assert "".join(piece.text for piece in stream) == done.text
    assert stream.completion.token_ids == done.token_ids


def test_bytes_a_token_are_the_true_sum_of_the_streamed_tensors(smollm2):
    (done,) = smollm2.generate(chat_ids(smollm2, FRANCE))
    tensors = {id(smollm2.model.weights.head): smollm2.model.weights.head}
    for layer in smollm2.model.weights.layers:
        tensors |= {id(t): t for t in vars(layer).values() if t is not None}
    tensors[0] = smollm2.model.weights.norm
    # 106 million weights of 20 bytes per 32, a table of 28 million of 34 per 32, 61 norms.
    assert done.weight_bytes_per_token == sum(t.nbytes for t in tensors.values()) == 96_576_768
    # 30 layers, 3 KV heads of 64, K and V, 4 bytes; steps at 37 to 43 cached tokens.
    assert done.kv_read_bytes_per_token == 30 * 3 * 64 * 2 * 4 * 40


def test_a_batch_of_different_lengths_gives_the_tokens_of_one_by_one(smollm2):
    prompts = [
        chat_ids(smollm2, FRANCE),
        smollm2.tokenizer.encode("Once upon a time, in a village by the sea, there lived"),
        smollm2.tokenizer.encode("1, 2, 3,"),
    ]
    params = SamplingParams(max_new_tokens=24)
    alone = [smollm2.generate(ids, params)[0] for ids in prompts]
    batch = smollm2.generate(prompts, params)
    assert [c.token_ids for c in batch] == [c.token_ids for c in alone]
    assert [c.finish_reason for c in batch] == ["stop", "length", "length"]


def test_a_stop_string_that_spans_tokens(smollm2):
    stream = smollm2.stream(chat_ids(smollm2, FRANCE), SamplingParams(stop="ance is Pa"))
    assert "".join(piece.text for piece in stream) == "The capital of Fr"
    assert stream.completion.finish_reason == "stop_string"


def test_case_1_a_sampled_stream_never_breaks_a_character(smollm2):
    prompt = chat_ids(smollm2, "Write ten emoji and then 你好 in Chinese.")
    params = SamplingParams(temperature=1, seed=4, max_new_tokens=40)
    stream = smollm2.stream(prompt, params)
    pieces = [piece.text for piece in stream]
    # A character cut in two would leave marks that the whole text does not have.
    assert "".join(pieces) == smollm2.tokenizer.decode(stream.completion.token_ids)


def test_a_second_turn_reads_only_what_is_new(smollm2):
    chat = smollm2.chat()
    first = chat.send(
        "My name is Ada. Answer in one word: hello.", SamplingParams(max_new_tokens=8)
    )
    list(first)
    second = chat.send("What is my name?", SamplingParams(max_new_tokens=8))
    list(second)
    done = second.completion
    assert first.completion.prompt_tokens <= done.cached_tokens < done.prompt_tokens
    fresh = smollm2.generate(
        smollm2.tokenizer.chat(chat.messages[:-1]), SamplingParams(max_new_tokens=8)
    )
    assert done.token_ids == fresh[0].token_ids


def test_weights_run_as_the_file_stores_them(smollm2):
    assert {name: len(held) for name, held in smollm2.model.formats.items()} == {
        "q8_0": 1,
        "q4_1": 210,
    }
    assert smollm2.dtype == "q4_1"


@pytest.mark.parametrize("options", [{"activations": "float32"}, {"kernels": "torch"}], ids=str)
def test_unrounded_activations_say_the_same(smollm2, options):
    plain = LLM(smollm2.model, smollm2.tokenizer, **options)
    ids = chat_ids(smollm2, FRANCE)
    assert plain.generate(ids)[0].token_ids == smollm2.generate(ids)[0].token_ids
