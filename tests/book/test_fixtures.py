"""The browser fixture sees what a reader would suffer from."""

from __future__ import annotations

import pytest


def test_a_quiet_page_has_no_problem(visit):
    seen = visit("<h1>calm</h1>")
    assert seen.page.inner_text("h1") == "calm"
    assert seen.problems == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ("<script>console.error('broken')</script>", "console error: broken"),
        ("<script>missing()</script>", "script error"),
        ("<img alt='' src='https://example.org/x.png'>", "asked the network"),
        ("<img alt='' src='absent.png'>", "failed request"),
    ],
)
def test_each_kind_of_problem_is_seen(visit, html, problem):
    seen = visit(html)
    assert any(problem in line for line in seen.problems)
