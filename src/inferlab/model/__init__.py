"""Checkpoints and one forward pass: readers, config, tokenizer, and the transformer in torch."""
