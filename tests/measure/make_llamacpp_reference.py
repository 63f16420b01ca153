"""Write llamacpp_reference.json: what llama.cpp makes of the text and the default model's file.

Run it by hand when either changes, with an interpreter that has llama-cpp-python (a minute):

    python tests/measure/make_llamacpp_reference.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

TEXT = Path(__file__).parents[2] / "src" / "inferlab" / "measure" / "alice.txt"


def main(model: Path) -> None:
    text = TEXT.read_bytes()
    llama = llama_cpp.Llama(str(model), n_ctx=3072, logits_all=True, verbose=False)
    ids = llama.tokenize(text, add_bos=False, special=False)
    llama.eval(ids)
    logits = np.asarray(llama.scores[: len(ids) - 1], np.float64)
    logits -= logits.max(-1, keepdims=True)
    every = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    logprobs = every[np.arange(len(ids) - 1), ids[1:]]
    reference = {
        "llama_cpp_python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
        "file": model.name,
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "ids": ids,
        "logprobs": np.round(logprobs, 4).tolist(),
    }
    out = Path(__file__).with_name("llamacpp_reference.json")
    out.write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    print(f"{len(ids)} tokens, perplexity {np.exp(-logprobs.mean()):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
