"""Bodies that are wrong: each is refused with the field named, and the server lives."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.server.protocol import ApiError, AskedChat, AskedText, parse

USER = {"role": "user", "content": "hello"}

#: A body for /v1/completions, and the field that its error names.
WRONG_TEXT = [
    ("{", None),
    ("", None),
    ('""', None),
    ("null", None),
    ("[]", None),
    ("NaN", None),
    ("7", None),
    ("\ufeff{}", None),
    ('{"prompt": "a",}', None),
    ('{"prompt": "\\ud800"}', None),
    ("[" * 5000, None),
    ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", None),
    ('{"prompt": "a", "user": NaN}', None),
    ("{}", "prompt"),
    ('{"prompt": null}', "prompt"),
    ('{"prompt": []}', "prompt"),
    ('{"prompt": {}}', "prompt"),
    ('{"prompt": 5}', "prompt"),
    ('{"prompt": [true]}', "prompt"),
    ('{"prompt": [1.5]}', "prompt"),
    ('{"prompt": ["a", 1]}', "prompt"),
    ('{"prompt": [[1], [null]]}', "prompt"),
    ('{"prompt": ""}', "prompt"),
    ('{"prompt": ["a", ""]}', "prompt"),
    ('{"prompt": [[]]}', "prompt"),
    ('{"prompt": [[-1]]}', "prompt"),
    ('{"prompt": [1000000000]}', "prompt"),
    ('{"prompt": [[1], [258]]}', "prompt"),
    (json.dumps({"prompt": [7] * 513}), "prompt"),
    ('{"prompt": "a", "temperature": -1}', "temperature"),
    ('{"prompt": "a", "temperature": NaN}', "temperature"),
    ('{"prompt": "a", "temperature": Infinity}', "temperature"),
    ('{"prompt": "a", "temperature": 1e999}', "temperature"),
    ('{"prompt": "a", "temperature": true}', "temperature"),
    ('{"prompt": "a", "temperature": "1"}', "temperature"),
    ('{"prompt": "a", "top_p": 1.5}', "top_p"),
    ('{"prompt": "a", "top_p": 0}', "top_p"),
    ('{"prompt": "a", "min_p": 2}', "min_p"),
    ('{"prompt": "a", "top_k": -1}', "top_k"),
    ('{"prompt": "a", "top_k": 1.5}', "top_k"),
    ('{"prompt": "a", "seed": -1}', "seed"),
    ('{"prompt": "a", "seed": 9223372036854775808}', "seed"),
    ('{"prompt": "a", "max_tokens": "8"}', "max_tokens"),
    ('{"prompt": "a", "max_tokens": -1}', "max_tokens"),
    ('{"prompt": "a", "max_tokens": 8.5}', "max_tokens"),
    ('{"prompt": "a", "max_tokens": true}', "max_tokens"),
    ('{"prompt": "a", "max_tokens": 513}', "max_tokens"),
    ('{"prompt": "a", "stop": [1]}', "stop[0]"),
    ('{"prompt": "a", "stop": ["a", ""]}', "stop[1]"),
    ('{"prompt": "a", "stop": 5}', "stop"),
    (json.dumps({"prompt": "a", "stop": ["x"] * 17}), "stop"),
    ('{"prompt": "a", "stream": "yes"}', "stream"),
    ('{"prompt": "a", "stream": 1}', "stream"),
    ('{"prompt": "a", "stream_options": {"include_usage": true}}', "stream_options"),
    ('{"prompt": "a", "stream": true, "stream_options": 1}', "stream_options"),
    ('{"prompt": "a", "stream": true, "stream_options": {"usage": true}}', "stream_options.usage"),
    ('{"prompt": "a", "logprobs": 21}', "logprobs"),
    ('{"prompt": "a", "logprobs": true}', "logprobs"),
    ('{"prompt": "a", "model": 5}', "model"),
    ('{"prompt": "a", "ignore_eos": "no"}', "ignore_eos"),
    ('{"prompt": ["a", "b"], "trace": true}', "trace"),
    ('{"prompt": "a", "n": 2}', "n"),
    ('{"prompt": "a", "n": true}', "n"),
    ('{"prompt": "a", "best_of": 3}', "best_of"),
    ('{"prompt": "a", "echo": true}', "echo"),
    ('{"prompt": "a", "suffix": "z"}', "suffix"),
    ('{"prompt": "a", "logit_bias": {"5": 1}}', "logit_bias"),
    ('{"prompt": "a", "presence_penalty": 0.5}', "presence_penalty"),
    ('{"prompt": "a", "frequency_penalty": 1}', "frequency_penalty"),
    ('{"prompt": "a", "max_token": 5}', "max_token"),
]
#: The same for /v1/chat/completions: what stands beside one good message.
WRONG_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "tool", "content": "a"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [USER | {"name": "Ann"}]}, "messages[0].name"),
    ({"messages": [USER | {"tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    ({"messages": [USER | {"colour": "red"}]}, "messages[0].colour"),
    ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "a"}}, "audio"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"max_completion_tokens": -5}, "max_completion_tokens"),
    ({"max_completion_tokens": 10_000}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
]
HARMLESS = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "n": 1,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "audio": None,
    "seed": None,
    "stop": None,
    "temperature": 0,
}


def check_error(response, param) -> None:
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    named = "prompt has" if param == "messages" and "tokens" in error["message"] else param
    assert param is None or named in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(("body", "param"), WRONG_TEXT)
def test_a_wrong_body_is_refused(shared, body, param):
    check_error(shared.http.post("/v1/completions", content=body.encode()), param)


@pytest.mark.parametrize(("fields", "param"), WRONG_CHAT)
def test_a_wrong_chat_is_refused(shared, fields, param):
    check_error(shared.ask("chat/completions", **({"messages": [USER]} | fields)), param)


def test_bytes_that_are_no_text_are_refused(shared):
    for body in (b"\xff", b'{"prompt": "\xc3"}', b"\x00", bytes(range(256))):
        check_error(shared.http.post("/v1/completions", content=body), None)


def test_what_changes_nothing_is_accepted(shared):
    body = {"messages": [USER | {"refusal": None, "tool_calls": []}]} | HARMLESS
    assert shared.ask("chat/completions", **body).json()["choices"][0]["finish_reason"] == "stop"


def test_messages_may_come_in_parts_and_from_all_roles(shared):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    turns = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": ""},
    ]
    answer = shared.ask("chat/completions", messages=turns).json()
    assert answer["choices"][0]["message"]["content"] == "S:BE BRIEFU:HELLOA:YESU:"


def test_a_wrong_model_is_not_found(shared):
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [USER]}),
    ):
        missing = shared.ask(path, model="gpt-9", **body)
        assert missing.status_code == 404
        assert missing.json()["error"]["param"] == "model"
        assert "tiny" in missing.json()["error"]["message"]


def test_other_ways_get_an_error_object_too(shared):
    for method, path, status in [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/", 405),
    ]:
        response = shared.http.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["message"]


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_broken_bodies(shared, count):
    """Bytes cut, doubled, swapped or replaced in a good body: a 4xx, or an answer all the same."""
    dice = random.Random(5)
    good = json.dumps({"model": "tiny", "messages": [USER], "max_tokens": 2, "stop": ["x"]})
    codes = set()
    for _ in range(count):
        body = bytearray(good.encode())
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(body))
            match dice.randrange(4):
                case 0:
                    del body[at : at + dice.randint(1, 9)]
                case 1:
                    body[at:at] = body[at : at + dice.randint(1, 9)]
                case 2:
                    body[at] = dice.randrange(256)
                case 3:
                    body[at:at] = dice.choice([b"NaN", b"null", b"[", b"}", b"1e999", b"\\u0000"])
        response = shared.http.post("/v1/chat/completions", content=bytes(body))
        codes.add(response.status_code)
        assert response.json()
    assert codes <= {200, 400, 404}
    assert shared.engine.blocks.used == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = sorted({*AskedText.model_fields, *AskedChat.model_fields, "n", "tools", "echo", "user"})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.booleans())
def test_whatever_is_asked_is_taken_or_refused_by_name(fields, chat):
    good = {"messages": [USER]} if chat else {"prompt": "a"}
    body = json.dumps(good | fields).encode()
    kind = AskedChat if chat else AskedText
    error = None
    try:
        params = parse(kind, body).params(512)
    except ApiError as refused:
        error = refused
    if error is None:
        assert params.max_new_tokens <= 512
    else:
        assert error.status == 400
        root = (error.param or "").split(".")[0].split("[")[0]
        assert root in {*good, *fields} or "JSON" in error.message


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(body):
    with pytest.raises(ApiError):
        parse(AskedText, body)
