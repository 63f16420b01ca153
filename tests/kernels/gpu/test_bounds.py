"""Every load and store lies within the kernel's tensors, on shapes where a mask is needed.

One awkward shape an op; INFERLAB_SANITIZE=1 does the same to all other tests of this folder.
"""

from __future__ import annotations

import pytest
import torch

from inferlab.kernels import ops
from inferlab.kernels.gpu import compiled
from inferlab.kernels.quantised import FORMATS, quantise
from inferlab.measure import traffic

pytestmark = pytest.mark.skipif(traffic.why_not() is not None, reason=str(traffic.why_not()))


def narrow(*shape, dtype=torch.float32):
    """Random rows with a hole after each, which belongs to no tensor of the kernel."""
    return torch.randn(*shape[:-1], shape[-1] + 3).to(dtype)[..., : shape[-1]]


def vector_add():
    ops.vector_add(torch.randn(4097), torch.randn(4097), backend="triton")


def softmax():
    ops.softmax(narrow(3, 129), backend="triton")
    ops.softmax(narrow(2, 20001), backend="triton")


def matmul():
    ops.matmul(
        narrow(33, 70, dtype=torch.half).T, narrow(33, 45, dtype=torch.half), backend="triton"
    )
    ops.matmul(narrow(130, 35), narrow(67, 35).T, backend="triton")


def chain():
    ops.chain(torch.randn(2051), 3, backend="triton")


def rms_norm():
    x, gains = narrow(3, 127), torch.randn(127)
    ops.add_rms_norm(x, narrow(3, 127), gains, 1e-5, backend="triton")
    ops.rms_norm(x, gains, 1e-5, backend="triton")


def rope_and_cache():
    q, k, v = narrow(3, 9, 80), narrow(3, 3, 80), narrow(3, 3, 80)
    cos, sin = narrow(3, 20), narrow(3, 20)
    lengths, table = torch.tensor([4, 0, 30], dtype=torch.int32), torch.randperm(9).int().view(3, 3)
    for block, t in ((31, None), (5, table)):  # the last token has no page to go to
        k_pages, v_pages = narrow(9, 3, block, 80), narrow(9, 3, block, 80)
        ops.rope_and_cache(q, k, v, cos, sin, k_pages, v_pages, lengths, t, backend="triton")


def matvec():
    weight, x = narrow(67, 129), narrow(3, 129)
    ops.swiglu(weight, narrow(67, 129), x, backend="triton")
    ops.matvec(weight, x, torch.randn(67), narrow(3, 67), backend="triton")


def quant_matvec():
    x = narrow(3, 96)
    for form in FORMATS:
        weight, up = (quantise(torch.randn(5, 96), form) for _ in range(2))
        ops.quant_swiglu(weight, up, x, backend="triton")
        ops.quant_matvec(weight, x, torch.randn(5), narrow(3, 5), backend="triton")


def flash_attention():
    q, k, v = narrow(2, 19, 9, 80), narrow(2, 45, 3, 80), narrow(2, 45, 3, 80)
    for window in (None, 7):
        ops.flash_attention(q, k, v, window=window, offset=torch.tensor([0, 26]), backend="triton")
    ops.flash_attention(q, k, v, causal=False, backend="triton")


def decode_attention():
    lengths, table = torch.tensor([1, 39]), torch.tensor([[5, -7], [2, 0]], dtype=torch.int32)
    k, v = narrow(6, 3, 20, 80), narrow(6, 3, 20, 80)
    q = narrow(2, 9, 80)
    for window in (None, 7):
        ops.decode_attention(q, k, v, lengths, window, table=table, backend="triton")
    ops.decode_attention(q, narrow(2, 3, 39, 80), narrow(2, 3, 39, 80), lengths, backend="triton")


def sample():
    logits = narrow(3, 4097)
    ones, ids = torch.ones(3, dtype=torch.float64), torch.arange(3)
    ops.sample(logits, ones, 7 * ids, 0.9 * ones, 0.01 * ones, ids, ids, backend="triton")


AWKWARD = {
    call.__name__: call
    for call in (
        vector_add,
        softmax,
        matmul,
        chain,
        rms_norm,
        rope_and_cache,
        matvec,
        quant_matvec,
        flash_attention,
        decode_attention,
        sample,
    )
}


def test_no_op_is_left_out():
    assert set(AWKWARD) == set(compiled.ops())


@pytest.mark.parametrize("op", AWKWARD)
def test_nothing_is_read_or_written_outside_of_the_tensors(op):
    modules = compiled.ops()
    with traffic.counting(modules[op]) as found:
        AWKWARD[op]()
    assert found.loaded > 0 < found.stored
    assert found.outside == 0
