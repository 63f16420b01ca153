"""Each chapter links a term of the glossary where it first uses it, and each link has its entry."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import sync

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("[0-9][0-9]-*.md"))
EACH = pytest.mark.parametrize("file", CHAPTERS, ids=lambda f: f.stem)
TERMS = re.findall(r"(?m)^## (.+)$", GLOSSARY)

#: How prose writes a term, where that is not its heading with or without an s at the end.
FORMS = {
    "Activations": "activations",
    "Arithmetic intensity": "(?<!weight )intensit(y|ies)",
    "Batch": "(?<!continuous )batch(es|ed|ing)?",
    "Attention": "(?<!query )(?<!latent )(?<!head )attention",
    "Bound": "(memory|compute)-bound",
    "Bus": "bus(es)?",
    "Cache": "(?<!prefix )caches?",
    "Causal mask": "causal|mask",
    "Chunked prefill": "chunks?",
    "Decode": "(?<!speculative )decod(e|ing)",
    "Core": "(?<!tensor )cores?",
    "Dense": "dense",
    "Eager": "eager",
    "FFN": "feed-forward|FFN",
    "FLOP": "(floating-point )?operations|FLOPs?",
    "Fusion": "fused|fusion",
    "GB and GiB": "GiB",
    "GQA": "GQA|grouped-query attention",
    "Greedy": "greed(y|ily)",
    "Head": "(?<!KV )heads?(?! start)",
    "Inference": "inference",
    "Latency": "latenc(y|ies)",
    "Launch": "launch(es|ed)?",
    "Layer": "(?<!dense )layers?",
    "LeNet": "LeNet(-5)?",
    "Logits": "logits",
    "Little's law": "Little's law",
    "MAC": "MACs?|multiply-accumulates?",
    "MLA": "MLA|multi-head latent attention",
    "MHA": "MHA|multi-head attention",
    "MoE": "MoE|mixtures? of experts",
    "MQA": "MQA|multi-query attention",
    "Norm": "norms",
    "Number format": "(fp|int|float)(4|8|16|32)",
    "Pass": "(a|one|each|every|the|single|forward|that|another) pass",
    "Prefix caching": "prefix (caching|reuse)",
    "Quantisation": "quanti[sz](ed?|ation|ing)",
    "Query, key, value": "quer(y|ies)|keys? and (its )?values?",
    "Residual": "residuals?( stream)?",
    "Ridge point": "ridges?( points?)?",
    "Routing": "routing",
    "Sampling": "sampl(ing|er)",
    "Scheduler": "schedul(ers?|ing)",
    "Softmax": "softmax",
    "SwiGLU": "SwiGLU",
    "Tensor parallel": "tensor parallel(ism)?",
    "Throughput": "throughput",
    "Vocabulary": "vocabular(y|ies)",
    "Weights": "weights?",
    "Window": "(?<!own )windows?",
}
#: Two words for one thing: a link to either explains both.
ALSO = {"Cache": ("kv-cache",), "Expert": ("moe",), "Head": ("kv-head",)}
#: Chapters that use the word in another sense, and say so there.
OTHER_SENSE = {
    ("01-classical-vs-neural", "Kernel"),
    ("01-classical-vs-neural", "Stack"),
    ("02-simd-vs-gpu", "Causal mask"),
    ("08-prefill-and-decode", "Stack"),
    ("15-life-of-a-request", "Window"),
}


def slug(term: str) -> str:
    """Return the anchor of a heading, as myst-parser makes it."""
    return re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-")


def form(term: str) -> re.Pattern[str]:
    """Return what finds a term in prose."""
    return re.compile(rf"\b({FORMS.get(term, re.escape(term) + 's?')})\b", re.IGNORECASE)


@cache
def prose(file: Path) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """Return the running text of a chapter, and (start, end, anchor) of its glossary links.

    Left out are what cannot carry a link or is not a statement of the chapter: headings, the
    question under the title, questions of a quiz, formulas, code, other links, what others say.
    """
    cells = [c.source for c in sync.read_twin(file).cells if c.cell_type == "markdown"]
    text = "\n\n".join(cells)
    text = re.sub(r"(?ms)^```.*?^```$", " ", text)
    text = re.sub(r"(?m)^#.*$", " ", text)
    text = re.sub(r"(?m)\A\s*\*.*\?\*$", " ", text.lstrip())
    text = re.sub(r"(?s)<summary>.*?</summary>|<[^>]+>", " ", text)
    text = re.sub(r"(?s)\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`", " ", text)
    text = re.sub(r"(?m)^\*\*Next:.*$", " ", text)
    text = re.sub(r"\*\*[\"“].*?[\"”]\*\*", " ", text)
    text = re.sub(r"\[[^\]]*\]\((?!\.\./book/glossary\.md#)[^)]*\)", " ", text)
    plain, links, at = "", [], 0
    for link in re.finditer(r"\[([^\]]*)\]\(\.\./book/glossary\.md#([^)]*)\)", text):
        plain += text[at : link.start()]
        links.append((len(plain), len(plain) + len(link[1]), link[2]))
        plain += link[1]
        at = link.end()
    return plain + text[at:], tuple(links)


def test_entries_stand_in_the_order_of_the_alphabet_and_once():
    letters = [re.sub(r"[^a-z0-9]", "", term.lower()) for term in TERMS]
    assert letters == sorted(set(letters))
    assert set(FORMS) <= set(TERMS)


def test_an_entry_is_short_and_leads_to_others_that_exist():
    anchors = {slug(term) for term in TERMS}
    for entry in re.split(r"(?m)^## ", GLOSSARY)[1:]:
        name, _, body = entry.partition("\n")
        assert 20 <= len(body.strip()) <= 480, name
        assert set(re.findall(r"\(#([^)]+)\)", body)) <= anchors, name


@EACH
def test_every_link_has_its_entry(file):
    linked = {anchor for _, _, anchor in prose(file)[1]}
    assert linked <= {slug(term) for term in TERMS}


@EACH
def test_the_first_use_of_a_term_is_a_link(file):
    text, links = prose(file)
    missing = []
    for term in TERMS:
        if (file.stem, term) in OTHER_SENSE:
            continue
        found = form(term).search(text)
        accepted = (slug(term), *ALSO.get(term, ()))
        if found and not any(
            start < found.end() and found.start() < end and anchor in accepted
            for start, end, anchor in links
        ):
            around = text[max(0, found.start() - 30) : found.end() + 20]
            missing.append(f"{term}: …{' '.join(around.split())}…")
    assert not missing, "\n".join(missing)
