"""Tokenizers built from GGUF metadata, against sentencepiece, tokenizers and transformers."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2 import tokenization_qwen2

from inferlab.errors import InferlabError
from inferlab.model.gguf_tokenizer import PRE_TOKENIZERS, from_gguf

TEXTS = [
    "hello world, hello  wide   world\n\n\tof 2024's numbers: 1234567 and 12.5%!",
    "I'LL say you'd've (done) it -- WE'RE here...\r\n\r\nEnd ",
    "naïve café “quotes” 中文字符 日本語 한국어 a😀b 👩‍👩‍👧‍👦 e\u0301 ﬁ ½²٣",
    "def f(x):\n        return {x: [1, 2]}  # comment\n\n\n",
    " leading and trailing  ",
    "",
]


def from_metadata(template=None, **fields):
    """Build from the keys of `tokenizer.ggml`, without a file."""
    metadata = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    return from_gguf(
        SimpleNamespace(path="x.gguf", metadata=metadata | {"tokenizer.chat_template": template})
    )


@pytest.fixture(scope="module")
def trained():
    """Return a sentencepiece model with byte fallback, as Llama 2 and Mistral have."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def test_sentencepiece_vocabularies_encode_as_sentencepiece_does(trained):
    size = trained.vocab_size()

    def kind(i):
        return 6 if trained.is_byte(i) else 3 if trained.is_control(i) else 1

    ours = from_metadata(
        model="llama",
        tokens=[trained.id_to_piece(i) for i in range(size)],
        scores=[trained.get_score(i) for i in range(size)],
        token_type=[2, *(kind(i) for i in range(1, size))],
        bos_token_id=trained.bos_id(),
        eos_token_id=trained.eos_id(),
    )
    assert (ours.bos_id, ours.eos_ids, ours.adds_bos) == (1, {2}, True)
    for text in TEXTS:
        expected = trained.encode(text)
        assert ours.encode(text, bos=False) == expected, text
        assert ours.encode(text) == [1, *expected]
        assert ours.decode(expected) == trained.decode(expected) == text


def test_a_vocabulary_without_the_space_before_text(trained):
    tokens = [trained.id_to_piece(i) for i in range(trained.vocab_size())]
    scores = [trained.get_score(i) for i in range(trained.vocab_size())]
    ours = from_metadata(model="llama", tokens=tokens, scores=scores, add_space_prefix=False)
    assert ours.decode(ours.encode("hello world")) == "hello world"
    assert tokens[ours.encode(" world")[0]].startswith("▁")
    assert not tokens[ours.encode("world")[0]].startswith("▁")


# Each named splitting of text, as the models' own Hugging Face tokenizers define it.
OWN = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "llama-bpe": TikTokenConverter().pattern,
    "qwen2": tokenization_qwen2.PRETOKENIZE_REGEX,
}


@pytest.fixture(scope="module")
def byte_level():
    """Return tokens and merges of a byte-level BPE that merges across words where it may."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS * 3, trainer)
    tokens = sorted(backend.get_vocab(), key=backend.get_vocab().get)
    state = json.loads(backend.to_str())
    return tokens, [" ".join(pair) for pair in state["model"]["merges"]]


@pytest.mark.parametrize("pre", OWN)
def test_named_pre_tokenizers_split_as_the_models_own(byte_level, pre):
    tokens, merges = byte_level
    ours = from_metadata(model="gpt2", pre=pre, tokens=tokens, merges=merges)
    theirs = tokenizers.Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(tokens)},
            [tuple(m.split(" ")) for m in merges],
            ignore_merges=pre == "llama-bpe",
        )
    )
    own = OWN[pre]
    if isinstance(own, str):
        own = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(own), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    theirs.pre_tokenizer = own
    if pre == "qwen2":
        theirs.normalizer = normalizers.NFC()
    for text in TEXTS:
        ids = ours.encode(text, bos=False)
        assert ids == theirs.encode(text).ids, text
        if pre != "qwen2":  # NFC changes e + accent, by design
            assert ours.decode(ids) == text


def test_every_named_pre_tokenizer_works(byte_level):
    tokens, merges = byte_level
    for pre in PRE_TOKENIZERS:
        ours = from_metadata(model="gpt2", pre=pre, tokens=tokens, merges=merges)
        assert ours.decode(ours.encode(TEXTS[0])) == TEXTS[0]


def chat_vocabulary(byte_level, **fields):
    tokens, merges = byte_level
    tokens = ["<unk>", "<s>", "</s>", "<|eot|>", "<tool>", *tokens]
    types = [2, 3, 3, 3, 4] + [1] * (len(tokens) - 5)
    given = dict(model="gpt2", pre="gpt-2", tokens=tokens, merges=merges, token_type=types)
    return from_metadata(**given | dict(bos_token_id=1, eos_token_id=2, eot_token_id=3) | fields)


@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_added_once_where_the_file_says_so(byte_level, add_bos):
    writes = chat_vocabulary(
        byte_level, add_bos_token=add_bos, template="{{ bos_token }}{{ messages[0].content }}"
    )
    silent = chat_vocabulary(
        byte_level, add_bos_token=add_bos, template="{{ messages[0].content }}{{ eos_token }}"
    )
    plain = writes.encode("hello", bos=False)
    message = [{"role": "user", "content": "hello"}]
    assert writes.chat(message) == [1, *plain]
    assert silent.chat(message) == [*([1] * add_bos), *plain, 2]
    assert writes.encode("hello") == [*([1] * add_bos), *plain]


def test_control_tokens_end_texts_and_user_defined_ones_are_text(byte_level):
    ours = chat_vocabulary(byte_level)
    assert ours.eos_ids == {2, 3}
    ids = ours.encode("a<|eot|>b<tool></s>", bos=False)
    assert {2, 3, 4} < set(ids)
    assert ours.decode(ids) == "ab<tool>"
    added = ours.backend.get_added_tokens_decoder()
    assert added[3] == AddedToken("<|eot|>", special=True, normalized=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(model="bert"), r"tokenizer\.ggml\.model 'bert'"),
        (dict(model=None), r"tokenizer\.ggml\.model"),
        (dict(pre="gpt-9"), r"tokenizer\.ggml\.pre 'gpt-9'.*gpt-2"),
        (dict(tokens=[]), r"tokenizer\.ggml\.tokens must be a list"),
        (dict(merges=["a"]), r"tokenizer\.ggml\.merges"),
        (dict(merges=["zz zzz"]), r"tokenizer\.ggml\.merges"),
        (dict(merges=7), r"tokenizer\.ggml\.merges"),
        (dict(bos_token_id=10**6), "outside the vocabulary"),
        (dict(bos_token_id="one"), r"tokenizer\.ggml\.bos_token_id"),
        (dict(model="llama"), r"tokenizer\.ggml\.scores"),
        (dict(model="llama", scores=[0.0]), r"tokenizer\.ggml\.scores"),
        (dict(token_type="x"), r"tokenizer\.ggml\.token_type"),
    ],
)
def test_damaged_vocabularies_are_refused_by_name(byte_level, fields, message):
    with pytest.raises(InferlabError, match=message):
        chat_vocabulary(byte_level, **fields)
