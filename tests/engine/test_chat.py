"""Conversations: what a turn reuses, and that reuse changes nothing."""

import pytest

from inferlab.engine import LLM, SamplingParams
from inferlab.errors import InferlabError

PARAMS = SamplingParams(max_new_tokens=5, ignore_eos=True)


def fresh_answer(llm, chat):
    """What the model says to the conversation's last prompt with nothing cached."""
    ids = llm.tokenizer.chat(chat.messages[:-1])
    return llm.generate(ids, PARAMS)[0].token_ids


def test_every_turn_reuses_the_cache_and_answers_as_without_it(tiny):
    chat = tiny.chat()
    reused = []
    for text in ("hi", "and?", "so"):
        stream = chat.send(text, PARAMS)
        for _ in stream:
            pass
        done = stream.completion
        assert done.token_ids == fresh_answer(tiny, chat)
        reused.append(done.cached_tokens)
        assert done.cached_tokens < done.prompt_tokens
    # The prompt of the turn before is held, whatever became of the answer's text.
    assert reused[0] == 0
    assert reused[1] >= len("u:hi_a:")
    assert reused[2] > reused[1]


def test_all_but_the_last_token_of_an_answer_is_in_the_cache(scripted):
    first = len("u:hi_a:")
    llm, model = scripted("abcde", prompt_tokens=first)
    chat = llm.chat()
    list(chat.send("hi", PARAMS))
    stream = chat.send("more", PARAMS)
    list(stream)
    # The fifth token was the limit: nobody ran it, so the cache does not know it.
    assert stream.completion.cached_tokens == first + 4
    assert model.passes[5][0] == first + 4


def test_an_answer_that_is_left_stays_and_the_next_turn_is_right(tiny):
    chat = tiny.chat()
    for _ in chat.send("hi", PARAMS):
        break
    stream = chat.send("more", PARAMS)
    for _ in stream:
        pass
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "user", "assistant"]
    assert stream.completion.token_ids == fresh_answer(tiny, chat)


def test_the_last_token_of_a_prompt_is_read_again_even_if_all_are_cached(tiny):
    chat = tiny.chat()
    list(chat.send("hi", PARAMS))
    # The same first turn again, into the cache that already holds all of it.
    chat._past, chat._turn = [], None
    stream = chat.send("hi", PARAMS)
    list(stream)
    assert stream.completion.cached_tokens == stream.completion.prompt_tokens - 1
    assert stream.completion.token_ids == fresh_answer(tiny, chat)


def test_a_turn_that_does_not_fit_is_forgotten(tiny):
    chat = tiny.chat()
    list(chat.send("hi", PARAMS))
    before = chat.messages
    for text, words in [("x" * 80, "context holds 64"), ("", "prompt is empty")]:
        with pytest.raises(InferlabError, match=words):
            chat.send(text, PARAMS)
    assert chat.messages == before
    stream = chat.send("ok", PARAMS)
    list(stream)
    assert stream.completion.token_ids == fresh_answer(tiny, chat)


def test_a_model_without_a_template_is_refused(tiny):
    with pytest.raises(InferlabError, match="no chat template"):
        LLM(tiny.model).chat()
