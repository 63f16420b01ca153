"""The decode step of Triton's kernels against `Transformer.forward`, and what its recording holds.

On a CPU the kernels run in Triton's interpreter, and a recording is the list of its launches.
"""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from caches import filled, forward
from interpreter import run_few_programs

from inferlab.engine import LLM, Engine, SamplingParams, gpu_decode, llm
from inferlab.engine.gpu_decode import GpuDecoder
from inferlab.errors import InferlabError
from inferlab.kernels import backends
from inferlab.kernels.quantised import quantise
from inferlab.model import synthetic

pytestmark = pytest.mark.skipif(not backends.has_triton(), reason="Triton is not here")

SCALED = {"factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS = {
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
    "biases, one KV head": {"attention_bias": True, "num_key_value_heads": 1},
    "window, tied": {"model_type": "mistral", "sliding_window": 4, "tie_word_embeddings": True},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
}
MORE = {
    "llama": {},
    "as many KV heads as heads": {"num_key_value_heads": 4},
    "odd sizes": {"hidden_size": 52, "intermediate_size": 77, "vocab_size": 123, "head_dim": 10},
    "half the channels turn": {"partial_rotary_factor": 0.5},
    "llama3": {"rope_scaling": {"rope_type": "llama3", **SCALED}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", **SCALED}},
    "qwen2, some layers windowed": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
}
CASES = [pytest.param(fields, id=name) for name, fields in VARIANTS.items()]
CASES += [pytest.param(f, id=name, marks=pytest.mark.slow) for name, f in MORE.items()]


@pytest.fixture(autouse=True)
def _few_programs(device, monkeypatch):
    if device != "cuda":
        run_few_programs(monkeypatch)


def random_model(device, dtype=torch.float32, **fields):
    """Weights wide enough that attention is far from flat and positions matter."""
    sizes = {"head_dim": 16, "vocab_size": 96, "max_position_embeddings": 32}
    config = tiny.config(**sizes | fields)
    return synthetic.transformer(config, device, dtype, spread=0.3, seed=7)


def check(model, lengths, steps=2, tolerance=2e-4):
    ours, theirs = filled(model, lengths), filled(model, lengths)
    decoder = GpuDecoder(model, ours)
    for step in range(steps):
        ids = (torch.arange(len(lengths)) * 17 + step * 5) % model.config.vocab
        right, got = forward(model, ids, theirs), decoder.step(ids, ours)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, right, atol=tolerance * 10, rtol=tolerance)
    assert ours.lengths.tolist() == theirs.lengths.tolist() == [n + steps for n in lengths]
    for kind in "kv":
        a, b = getattr(ours, kind), getattr(theirs, kind)
        torch.testing.assert_close(a, b, atol=tolerance * 10, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("fields", CASES)
def test_steps_equal_the_torch_pass(fields, device):
    check(random_model(device, **fields), [9, 0, 5])


def test_steps_in_float16(device):
    check(random_model(device, torch.float16), [9, 0], tolerance=5e-3)


SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ("q8_0", "q4_0")]


@pytest.mark.parametrize("format", ["q4_1", "int8", *SLOW])
def test_steps_on_quantised_weights(format, device, monkeypatch):
    monkeypatch.setattr(backends, "has_numba", lambda: False)  # rows as a GPU reads them
    config = random_model("cpu", intermediate_size=64, num_hidden_layers=1).config
    check(synthetic.transformer(config, device, format=format, spread=0.3), [3])


def test_projections_of_several_formats_are_read_one_by_one(device):
    model = random_model(device, num_hidden_layers=1)
    (layer,) = model.weights.layers
    layer.q, layer.v = quantise(layer.q, "q4_1"), quantise(layer.v, "q8_0")
    check(model, [3], steps=1)


def test_what_no_kernel_reads_is_torchs(device):
    model = random_model(device, intermediate_size=64)
    (layer, _) = model.weights.layers
    layer.gate, layer.up = quantise(layer.gate, "q4_0"), quantise(layer.up, "q8_0")
    assert not gpu_decode.supports(model)
    model = random_model(device, hidden_size=40)
    assert gpu_decode.supports(model)
    model.weights.head = quantise(model.weights.head, "int8")
    assert not gpu_decode.supports(model)  # 40 columns are no whole blocks
    assert not gpu_decode.supports(random_model(device, torch.float64))


def test_queries_keys_and_values_are_held_once_and_in_one_piece(device):
    model = random_model(device)
    layer = model.weights.layers[0]
    before = [layer.q.clone(), layer.k.clone(), layer.v.clone()]
    cache = filled(model, [1])
    GpuDecoder(model, cache)
    addresses = [layer.q.data_ptr(), layer.k.data_ptr(), layer.v.data_ptr()]
    assert addresses[1:] == [addresses[0] + before[0].nbytes, addresses[1] + before[1].nbytes]
    assert all(map(torch.equal, before, (layer.q, layer.k, layer.v)))
    GpuDecoder(model, cache)
    assert [layer.q.data_ptr(), layer.k.data_ptr(), layer.v.data_ptr()] == addresses


def tokens(model, batch, steps, step):
    """Greedy tokens of `batch` rows with prompts of their own, by `step(ids, cache)`."""
    cache = filled(model, [(5 * b) % 7 for b in range(batch)])
    ids, said = torch.arange(batch), []
    for _ in range(steps):
        ids = step(ids, cache).argmax(-1).cpu()
        said.append(ids.tolist())
    return said


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_case_48_recorded_steps_say_the_tokens_of_torch(batch, device):
    model = random_model(device, num_hidden_layers=1)
    decoders = {}

    def by(graphs):
        def step(ids, cache):
            known = decoders.setdefault(graphs, GpuDecoder(model, cache, graphs=graphs))
            return known.step(ids, cache)

        return step

    want = tokens(model, batch, 3, lambda ids, cache: forward(model, ids, cache))
    assert len({tuple(said) for said in zip(*want, strict=True)}) == batch  # rows do differ
    for graphs in (True, False) if batch == 3 or device == "cuda" else (True,):
        assert tokens(model, batch, 3, by(graphs)) == want
        (step,) = decoders[graphs]._steps.values()
        assert (step._graph is not None) == graphs


def poison(step):
    """Overwrite every buffer of a recorded step, inputs and results too."""
    buffers = [value for value in vars(step).values() if isinstance(value, torch.Tensor)]
    assert len(buffers) > 10
    for buffer in buffers:
        buffer.fill_(math.nan if buffer.is_floating_point() else -77)


def test_case_48_nothing_of_an_earlier_request_is_read(device):
    model = random_model(device, num_hidden_layers=1)
    memory = filled(model, [12, 3, 8])
    decoder = GpuDecoder(model, memory)
    decoder.step(torch.tensor([1, 2, 3]), memory)

    again, fresh = filled(model, [2, 6]), filled(model, [2, 6])
    for kind in "kv":
        getattr(memory, kind)[:, :2] = getattr(again, kind)
    rows = memory.rows(0, 2)
    rows.lengths[:] = again.lengths
    decoder.step(torch.tensor([5, 6]), rows)  # records the step of two rows
    another = GpuDecoder(model, fresh)
    another.step(torch.tensor([5, 6]), fresh)
    for step in decoder._steps.values():
        poison(step)
    right = another.step(torch.tensor([7, 8]), fresh)
    assert torch.equal(decoder.step(torch.tensor([7, 8]), rows), right)
    assert torch.equal(memory.k[:, :2].nan_to_num(9), fresh.k.nan_to_num(9))


def test_case_48_rows_that_a_recording_has_too_many_write_nothing(device):
    model = random_model(device)
    memory, theirs = filled(model, [4, 7, 2, 6]), filled(model, [7, 2, 6])
    for kind in "kv":
        getattr(theirs, kind)[:] = getattr(memory, kind)[:, 1:]
    row = memory.k[:, 0].clone(), memory.v[:, 0].clone()
    decoder = GpuDecoder(model, memory)
    ids = torch.tensor([5, 6, 7])
    got = decoder.step(ids, memory.rows(1, 4))
    assert list(decoder._steps) == [4]
    torch.testing.assert_close(got, forward(model, ids, theirs), atol=2e-3, rtol=2e-4)
    assert torch.equal(memory.k[:, 0].nan_to_num(9), row[0].nan_to_num(9))
    assert torch.equal(memory.v[:, 0].nan_to_num(9), row[1].nan_to_num(9))
    assert memory.lengths.tolist() == [4, 8, 3, 7]


class Paged:
    """Rows whose pages lie anywhere; the pages of nobody hold canaries."""

    def __init__(self, model, lengths, longest, block):
        c, columns = model.config, math.ceil((longest + 1) / block)
        self.batch, self.capacity = len(lengths), longest
        count = self.batch * columns + 3
        order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
        self.table = order[: self.batch * columns].view(self.batch, columns).int()
        shape = (c.layers, count, c.kv_heads, block, c.head_dim)
        self.pages = tuple(
            torch.full(shape, 77.0, device=model.device, dtype=model.dtype) for _ in range(2)
        )
        self.lengths = torch.tensor(lengths)

    def advance(self, tokens):
        self.lengths += tokens

    def gather(self):
        """Keys and values as a contiguous cache holds them, [L, B, KV, M * block, D]."""
        return tuple(p[:, self.table.long()].transpose(2, 3).flatten(3, 4) for p in self.pages)


@pytest.mark.parametrize(("longest", "block"), [(10, 4), (12, 4)])
def test_case_48_a_run_to_the_end_needs_the_last_column_of_the_table(longest, block, device):
    model = random_model(device, num_hidden_layers=1)
    cache, theirs = Paged(model, [0, 0], longest, block), filled(model, [0, 0], longest)
    assert cache.table.shape[1] == (longest + 1 + block - 1) // block
    decoder = GpuDecoder(model, cache)
    for position in range(longest):
        ids = torch.tensor([position, 2 * position]) % model.config.vocab
        if position == 6:  # pages move: the recording must see the new table
            used = int(cache.table[0, 1])
            spare = ({*range(len(cache.pages[0][0]))} - {*cache.table.flatten().tolist()}).pop()
            for kind in cache.pages:
                kind[:, spare] = kind[:, used]
                kind[:, used] = math.nan
            cache.table[0, 1] = spare
        right = forward(model, ids, theirs)
        torch.testing.assert_close(decoder.step(ids, cache), right, atol=2e-3, rtol=2e-4)
    for ours, right in zip(cache.gather(), (theirs.k, theirs.v), strict=True):
        torch.testing.assert_close(ours[:, :, :, :longest], right, atol=2e-3, rtol=2e-4)
        assert (ours[:, :, :, longest:] == 77).all()
    with pytest.raises(InferlabError, match=f"holds {longest} positions a row; {longest + 1}"):
        decoder.step(torch.tensor([1, 1]), cache)
    assert cache.lengths.tolist() == [longest, longest]


def test_memory_that_moves_is_recorded_anew(device, monkeypatch):
    model = random_model(device, num_hidden_layers=1)
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    prompts = [[1, 2, 3], [9]]
    want = [c.token_ids for c in LLM(model, kernels="torch").generate(prompts, params)]
    capacities = []

    class Noted(GpuDecoder):
        def __init__(self, transformer, cache):
            super().__init__(transformer, cache)
            capacities.append(self.capacity)

    monkeypatch.setattr(gpu_decode, "GpuDecoder", Noted)
    monkeypatch.setattr(llm, "_FIRST_SLOTS", 1)
    monkeypatch.setattr(llm, "_GPU_SLOTS", 4)
    ours = LLM(model, kernels="triton")
    assert [c.token_ids for c in ours.generate(prompts, params)] == want
    assert capacities == [4, 8]
    cache = filled(model, [3])
    decoder = GpuDecoder(model, cache)
    assert decoder.serves(cache)
    assert decoder.serves(cache.row(0))
    cache.grow(48)
    assert not decoder.serves(cache)
    with pytest.raises(InferlabError, match="not in the memory"):
        decoder.step(torch.tensor([1]), cache)


def test_rows_leave_and_join(device):
    model = random_model(device, num_hidden_layers=1)
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (2, 4, 3)]
    prompts = [[1, 2, 3], [9], [4, 4]]
    want = [c.token_ids for c in LLM(model, kernels="torch").generate(prompts, params)]
    ours = LLM(model, kernels="triton")
    assert [c.token_ids for c in ours.generate(prompts, params)] == want
    assert [c.token_ids for c in ours.generate(prompts, params, chunk=1)] == want


@pytest.mark.parametrize("window", [None, 4])
def test_queries_behind_a_cache_equal_those_that_torch_masks(window, device):
    fields = {"model_type": "mistral", "sliding_window": window} if window else {}
    model = random_model(device, num_hidden_layers=1, **fields)
    ids = torch.arange(10, device=device).view(2, 5) * 7
    said = []
    for kernels in ("torch", "triton"):
        cache = filled(model, [3, 8])
        for kept in (cache.k, cache.v):
            kept.nan_to_num_(0)
        cache.kernels = kernels
        said.append(model.forward(ids, cache.positions(5), cache, logits="all"))
    torch.testing.assert_close(*said, atol=2e-3, rtol=2e-4)


def test_more_rows_than_a_step_takes_are_torchs(device, monkeypatch):
    model = random_model(device)
    cache = filled(model, [1] * 17)
    with pytest.raises(InferlabError, match="batch 17 is above 16"):
        GpuDecoder(model, cache).step(torch.zeros(17), cache)
    ours = LLM(model, kernels="triton")
    monkeypatch.setattr(gpu_decode, "GpuDecoder", None)  # would fail if it were used
    done = ours.generate(
        [[1]] * 17, SamplingParams(max_new_tokens=2, ignore_eos=True), batch_size=17
    )
    assert len({tuple(c.token_ids) for c in done}) == 1


def test_a_full_row_is_refused_and_nothing_stored(device):
    model = random_model(device)
    cache = filled(model, [24, 3])
    before = cache.k.clone()
    with pytest.raises(InferlabError, match="holds 24 positions a row; 25 would not fit"):
        GpuDecoder(model, cache).step(torch.tensor([1, 1]), cache)
    assert torch.equal(cache.k.nan_to_num(9), before.nan_to_num(9))
    assert cache.lengths.tolist() == [24, 3]


def test_the_interpreter_does_not_serve_bfloat16():
    model = random_model("cpu", torch.bfloat16)
    assert not gpu_decode.supports(model)
    with pytest.raises(InferlabError, match="kernels triton needs Triton, and a GPU or"):
        LLM(model, kernels="triton")


def test_without_triton_it_says_so(monkeypatch):
    model = random_model("cpu")
    monkeypatch.setenv("INFERLAB_HIDE", "triton")
    assert not LLM(model).triton
    with pytest.raises(InferlabError, match="kernels triton needs Triton"):
        LLM(model, kernels="triton")


def test_many_requests_through_pages_say_what_each_says_alone(device):
    model = random_model(device, num_hidden_layers=1, max_position_embeddings=48)
    ours, torchs = (LLM(model, kernels=kernels) for kernels in ("triton", "torch"))
    engine = Engine(ours, kv_tokens=64, block=16, max_batch=2, step_tokens=8)
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    prompts = [[1, 2, 3], list(range(4, 22)), [9]]
    requests = [engine.submit(prompt, params) for prompt in prompts]
    while engine.busy:
        engine.step()
        engine.check()
    for prompt, request in zip(prompts, requests, strict=True):
        (alone,) = torchs.generate([prompt], params)
        assert request.token_ids == alone.token_ids
