"""Stop strings: what is shown does not depend on how the text was cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.engine import SamplingParams
from inferlab.engine.request import Request
from inferlab.engine.stopping import StopStrings


def shown(pieces, stops):
    """All that a stream would show, and whether it was stopped."""
    stopper, out = StopStrings(stops), []
    for piece in pieces:
        out.append(stopper.push(piece))
        if stopper.hit:
            break
    return "".join(out) + stopper.flush(), stopper.hit


def first_to_complete(text, stops):
    """The definition: take one more character until some stop string stands at the end."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


letters = st.text(alphabet="ab\u00e9😀", max_size=4)


@given(st.lists(letters, max_size=12), st.lists(letters.filter(bool), max_size=4))
@settings(max_examples=500, deadline=None)
def test_any_cut_shows_the_text_before_the_first_stop_string(pieces, stops):
    text = "".join(pieces)
    assert shown(pieces, stops) == first_to_complete(text, stops)
    assert shown([text], stops) == first_to_complete(text, stops)


@given(st.lists(letters, max_size=12), st.lists(letters.filter(bool), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_nothing_shown_is_ever_taken_back_and_nothing_is_held_for_no_reason(pieces, stops):
    stopper, out, seen = StopStrings(stops), "", ""
    for piece in pieces:
        out, seen = out + stopper.push(piece), seen + piece
        if stopper.hit:
            return
        held = seen[len(out) :]
        assert seen.startswith(out)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_tokens():
    stopper = StopStrings(["END"])
    assert [stopper.push(t) for t in ["one E", "N", "D two"]] == ["one ", "", ""]
    assert stopper.hit


def test_a_near_miss_is_shown_after_all():
    stopper = StopStrings(["END"])
    assert [stopper.push(t) for t in ["E", "N", "d"]] == ["", "", "ENd"]
    assert not stopper.hit
    stopper.push("EN")
    assert stopper.flush() == "EN"


@given(st.text(alphabet="a\u00e9😀", max_size=9), st.binary(max_size=3), st.integers(1, 30),
       st.lists(letters.filter(bool), max_size=3))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_bytes_through_a_request_are_the_text_up_to_the_stop(
    byte_tokenizer, text, broken, limit, stops
):
    data = (text.encode() + broken + text.encode())[:limit]
    params = SamplingParams(max_new_tokens=max(len(data), 1), stop=stops)
    request = Request([1], params, context=99, start=0.0, tokenizer=byte_tokenizer)
    pieces = []
    for token in data or b"a":
        request.take(token, 1.0)
        pieces.append(request.new_text())
        if request.done:
            break
    want, hit = first_to_complete((data or b"a").decode(errors="replace"), stops)
    assert "".join(pieces) == request.completion().text == want
    assert request.finish_reason == ("stop_string" if hit else "length")
