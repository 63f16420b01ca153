"""The GGUF reader against the `gguf` package, and against damage."""

from __future__ import annotations

import random
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from inferlab.errors import InferlabError
from inferlab.model.gguf import FORMATS, GGUF

KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1]


def write(path, tensors, fields=()):
    writer = gguf.GGUFWriter(path, "llama")
    for add, *arguments in fields:
        getattr(writer, add)(*arguments)
    for name, values, kind in tensors:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def wide(*shape):
    return np.random.default_rng(7).normal(0, 3, shape).astype(np.float32)


@pytest.fixture
def small(tmp_path):
    """Return a file with one tensor of each type and one value of each kind of metadata."""
    fields = [
        ("add_uint8", "a.u8", 200),
        ("add_int8", "a.i8", -100),
        ("add_uint16", "a.u16", 60_000),
        ("add_int16", "a.i16", -30_000),
        ("add_uint32", "a.u32", 4_000_000_000),
        ("add_int32", "a.i32", -2_000_000_000),
        ("add_uint64", "a.u64", 2**63),
        ("add_int64", "a.i64", -(2**62)),
        ("add_float32", "a.f32", 0.5),
        ("add_float64", "a.f64", 0.1),
        ("add_bool", "a.bool", True),
        ("add_string", "a.string", "naïve 中文 😀"),
        ("add_array", "a.strings", ["", "Ġa", "😀"]),
        ("add_array", "a.ints", [1, -2, 3]),
        ("add_array", "a.floats", [0.25, -1.0]),
    ]
    tensors = [(f"t.{kind.name}", wide(3, 5, 64), kind) for kind in KINDS]
    return write(tmp_path / "small.gguf", tensors, fields)


def test_every_type_dequantises_as_in_the_gguf_package(small):
    ours = GGUF(small)
    for theirs in gguf.GGUFReader(small).tensors:
        expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        got = ours.tensor(theirs.name)
        assert (got.dtype, got.shape) == (np.float32, (3, 5, 64))
        np.testing.assert_array_equal(got, expected, err_msg=theirs.name)


def test_random_blocks_dequantise_alike_too(tmp_path):
    """Every code and every finite scale, not only what a quantiser writes."""
    random_bytes = np.random.default_rng(1).integers(0, 256, (4, 2000), np.uint8)
    for number, form in FORMATS.items():
        raw = random_bytes[:, : 2000 // form.size * form.size]
        blocks = raw.reshape(-1, form.size).copy()
        if form.width > 1:
            blocks[:, [1, 3] if form.name == "Q4_1" else [1]] &= 0xBF  # scales stay finite
        ours = form.widen(blocks)
        theirs = gguf.quants.dequantize(blocks, Kind(number))
        np.testing.assert_array_equal(ours, theirs.reshape(ours.shape), err_msg=form.name)


def test_blocks_are_the_bytes_of_the_file(small):
    ours = GGUF(small)
    for theirs in gguf.GGUFReader(small).tensors:
        blocks = ours.blocks(theirs.name)
        assert blocks.shape[0] == 15
        assert blocks.tobytes() == theirs.data.tobytes()
        assert ours.entry(theirs.name).nbytes == theirs.n_bytes == blocks.nbytes


def test_metadata_of_every_type(small):
    meta = GGUF(small).metadata
    assert meta["general.architecture"] == "llama"
    expected = dict(u8=200, i8=-100, u16=60_000, i16=-30_000, u32=4_000_000_000)
    expected |= dict(i32=-2_000_000_000, u64=2**63, i64=-(2**62), f32=0.5, f64=0.1, bool=True)
    expected |= dict(string="naïve 中文 😀", strings=["", "Ġa", "😀"])
    expected |= dict(ints=[1, -2, 3], floats=[0.25, -1.0])
    assert {key.removeprefix("a."): v for key, v in meta.items() if key[:2] == "a."} == expected


def test_what_is_not_gguf_is_said_to_be_so(tmp_path, small):
    path = tmp_path / "x.gguf"
    for content in (b"", b"GG", b"PK\3\4" + bytes(100), b"GGUF" + struct.pack("<I", 1) + bytes(64)):
        path.write_bytes(content)
        with pytest.raises(InferlabError, match=r"x\.gguf"):
            GGUF(path)
    with pytest.raises(InferlabError, match=r"missing\.gguf"):
        GGUF(tmp_path / "missing.gguf")
    with pytest.raises(InferlabError, match="cannot be read"):
        GGUF(tmp_path)
    with pytest.raises(InferlabError, match="tensor 'nothing' is missing"):
        GGUF(small).tensor("nothing")


def test_an_unsupported_type_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    blocks = np.zeros((2, 144), np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=Kind.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InferlabError, match=r"attn_q\.weight.*Q4_K.*Q8_0"):
        GGUF(tmp_path / "k.gguf")


def read_everything(path):
    file = GGUF(path)
    for name in file.entries:
        file.tensor(name)


def test_a_file_cut_anywhere_is_an_error(small, tmp_path):
    whole, path = small.read_bytes(), tmp_path / "cut.gguf"
    ends = range(0, len(whole), 61)
    for end in ends:
        path.write_bytes(whole[:end])
        with pytest.raises(InferlabError, match=r"cut\.gguf"):
            read_everything(path)
    assert len(ends) > 100


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a flipped scale is inf
def test_damage_in_the_header_never_escapes_or_allocates(small, tmp_path):
    """Flipped bytes and huge counts: the file is read, or an InferlabError says why not."""
    whole, path = small.read_bytes(), tmp_path / "bad.gguf"
    header = min(t.data_offset for t in gguf.GGUFReader(small).tensors)
    draw = random.Random(3)
    refused = 0
    tracemalloc.start()
    for trial in range(600):
        damaged = bytearray(whole)
        at = draw.randrange(header)
        if trial % 3:
            damaged[at] ^= 1 << draw.randrange(8)
        else:
            damaged[at : at + 8] = draw.choice([b"\xff" * 8, b"\0" * 7 + b"\x40", bytes(8)])
        path.write_bytes(damaged)
        try:
            read_everything(path)
        except InferlabError:
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 200
    assert peak < 40 * len(whole)
