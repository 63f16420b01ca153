"""Single kernels cost what their definition says, and agree with the passes they are part of."""

from __future__ import annotations

import pytest

from inferlab.errors import InferlabError
from inferlab.theory import costs, hardware, kernels, models, roofline


def test_adding_does_a_fraction_of_an_operation_a_byte():
    assert kernels.vector_sum(1000, "fp32").intensity == 1 / 4  # chapter 00's list
    assert kernels.vector_add(1000, "fp32").intensity == 1 / 12
    assert kernels.vector_add(1000, "bf16").intensity == pytest.approx(1 / 6)


def test_a_chain_takes_two_operations_more_with_each_step():
    assert [kernels.chain(8, k, "fp32").intensity for k in (0, 1, 8)] == [0.25, 0.75, 4.25]
    assert kernels.chain(7, 3).flops == 49


def test_a_square_product_does_a_sixth_of_its_side_in_fp32():
    """Chapter 00: 2 n^3 operations over 12 n^2 bytes."""
    assert kernels.matmul(1024, 1024, 1024, "fp32").intensity == pytest.approx(1024 / 6)


def test_a_matrix_and_a_few_rows_do_an_operation_a_byte_for_each_row():
    """Claims 52 and 56: tokens x 2 / bytes per weight, as long as rows are few."""
    for rows in (1, 8, 64):
        found = kernels.matmul(rows, 8192, 28672, "bf16").intensity
        assert found == pytest.approx(rows, rel=0.012)
    assert kernels.matmul(4, 8192, 8192, "q4_0").intensity == pytest.approx(4 * 64 / 18, rel=0.01)


def test_the_matrices_of_a_model_are_such_products():
    llama = models.get("llama-3.1-8b")
    part = costs.prefill(llama, 64).parts["ffn"]
    pieces = [kernels.matmul(64, 4096, 14336), kernels.matmul(64, 4096, 14336)]
    pieces.append(kernels.matmul(64, 14336, 4096))
    assert sum(piece.flops for piece in pieces) * llama.layers == part.flops
    vectors = 64 * 2 * (3 * 4096 + 3 * 14336)
    weights = sum(piece.bytes for piece in pieces) - vectors
    assert weights == pytest.approx(part.bytes / llama.layers, rel=1e-4)  # the norm's are left


def test_attention_of_one_token_does_as_many_operations_a_byte_as_heads_share_a_kv_head():
    """Claim 113: 8 for Llama 2 70B at 16 bits, 1 without sharing, whatever the context."""
    for heads in (1, 8):
        for context in (1, 4096):
            assert kernels.decode_attention(context, heads).intensity == heads
    llama = models.get("llama-2-70b")
    step = costs.decode_step(llama, 4095).parts["attention"]
    alone = kernels.decode_attention(4096, 8)
    assert step.flops == alone.flops * llama.kv_heads * llama.layers


def test_a_kernel_has_a_place_under_the_roof():
    h100 = hardware.get("h100-sxm")
    assert roofline.place(kernels.matmul(64, 8192, 8192), h100).bound == "memory"
    assert roofline.place(kernels.matmul(512, 8192, 8192), h100).bound == "compute"


def test_nothing_is_no_kernel():
    for call in (
        lambda: kernels.vector_add(0),
        lambda: kernels.chain(4, -1),
        lambda: kernels.matmul(1, 0, 3),
        lambda: kernels.decode_attention(5, 0),
    ):
        with pytest.raises(InferlabError, match="must be at least"):
            call()
