"""Write smollm2_reference.json: what transformers makes of the default model's GGUF file.

Run it by hand when the file or the prompts change (half a minute, needs the `peers` extra):

    python tests/model/make_smollm2_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import pre_tokenizers

from inferlab.model import source

NEW_TOKENS = 64
TOP = 20
MARGIN = 2e-3  # a greedy choice closer than this could differ between two right programs

CHATS = [
    "What is the capital of France?",
    "How do I boil an egg?",
    "Explain why the sky is blue to a child.",
    "List three prime numbers and say why they are prime.",
    "Translate 'good morning' to French, Spanish and German.",
]
PLAIN = [
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The three laws of thermodynamics are as follows:\n\n1.",
    "Water boils at 100 degrees Celsius at sea level, because " * 12,
    "<html>\n<head>\n<title>",
]
TEXTS = [
    "",
    " ",
    "hello",
    " hello  world ",
    "Hello, WORLD! It's 2024-10-31; we're done. I'll say I'd've.",
    "0 1 12 123 1234 12345.678 ½ ² ٣",
    "naïve café — “quotes” … Ünïcödé e\u0301",
    "中文字符和日本語のテキスト、한국어도.",
    "a😀b 😀 👩‍👩‍👧‍👦 🇫🇷 ❤️",
    "def f(x):\n\tif x:\n        return x ** 2  # square\n\n\n    pass",
    "tabs\t\ttwo\r\nnewlines\n\n\nand   spaces   \n  ",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_sta",
    "Привет, мир! שלום עולם مرحبا نص",
    "\x00\x01\x7f control \u200b zero\u00a0width",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
CONVERSATION = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another <one> & 'more'?"},
]


def main() -> None:
    path = source.find()
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    # transformers' GGUF reader knows no pre-tokenizer names; "smollm" splits off digits first.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    chats = [[{"role": "user", "content": text}] for text in CHATS]
    prompts = [template(tokenizer, chat) for chat in chats] + [
        tokenizer(t).input_ids for t in PLAIN
    ]
    some = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(0))[:100]
    reference = {
        "transformers": transformers.__version__,
        "file": path.name,
        "some_ids": some.tolist(),
        "prompts": [],
        "texts": [{"text": t, "ids": tokenizer(t).input_ids} for t in TEXTS],
        "chats": [
            {"messages": chat, "ids": template(tokenizer, chat)} for chat in [*chats, CONVERSATION]
        ],
    }
    for ids in prompts:
        logits, tokens, margin = greedy(model, ids)
        assert margin > MARGIN, f"choose another prompt: a choice hangs on {margin:.1e}"
        top = logits.topk(TOP)
        reference["prompts"].append(
            {
                "ids": ids,
                "top_ids": top.indices.tolist(),
                "top_logits": rounded(top.values),
                "some_logits": rounded(logits[some]),
                "sum": round(logits.double().sum().item(), 2),
                "norm": round(logits.double().norm().item(), 3),
                "greedy": tokens,
            }
        )
        print(f"{len(ids)} tokens, margin {margin:.4f}: {tokenizer.decode(tokens)!r}")
    out = Path(__file__).with_name("smollm2_reference.json")
    out.write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    print(f"{out}: {out.stat().st_size / 1e3:.0f} kB")


def template(tokenizer, messages) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@torch.inference_mode()
def greedy(model, ids: list[int]) -> tuple[torch.Tensor, list[int], float]:
    """Return the prompt's last logits, the next greedy tokens (past any EOS), the least margin."""
    state = model(torch.tensor([ids]))
    first, tokens, margin = state.logits[0, -1], [], float("inf")
    for _ in range(NEW_TOKENS):
        best, second = state.logits[0, -1].topk(2).values.tolist()
        margin = min(margin, best - second)
        tokens.append(int(state.logits[0, -1].argmax()))
        state = model(torch.tensor([tokens[-1:]]), past_key_values=state.past_key_values)
    return first, tokens, margin


def rounded(values: torch.Tensor) -> list[float]:
    return [round(v, 5) for v in values.tolist()]


if __name__ == "__main__":
    main()
