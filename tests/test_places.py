"""Layouts on disk: 8-bit floats with block scales, packed 4-bit experts, numbers scattered over fused tensors.

The truth is written out here bit by bit (and asked of transformers where it is installed); what a checkpoint says in
8 or 4 bits must give the very blob that its float32 twin gives.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_kit import PLAIN, change_config, entries_of, folder_of, refused
from colibri import places
from colibri.blobfile import BlobFile
from colibri.convert import convert
from oracles import cases, checkpoints, draw, tensorfile

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 48]}
MX = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def e4m3(code: int) -> float:
    """One byte: sign, four bits of exponent, three of fraction."""
    sign, exponent, fraction = -1.0 if code & 0x80 else 1.0, (code >> 3) & 15, code & 7
    return sign * (fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10))


def e2m1(code: int) -> float:
    """One nibble: sign, two bits of exponent, one of fraction."""
    sign, exponent, fraction = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
    return sign * (fraction * 0.5 if exponent == 0 else (2 + fraction) * 2.0 ** (exponent - 2))


def entry(name: str, dtype: str, values: np.ndarray) -> tensorfile.Entry:
    return tensorfile.Entry(name, values.shape, dtype, lambda: values)


def floats_of(path: Path) -> dict[tuple[str, int, int], np.ndarray]:
    """Every matrix of a blob, by role, layer and expert."""
    blob = BlobFile(path)
    return {(t.role, t.layer, e): blob.floats(t, e).copy() for t, e in blob.matrices()}


def same(one: Path, other: Path) -> None:
    a, b = (floats_of(convert(folder, folder / "m.colibri", PLAIN).path) for folder in (one, other))
    assert set(a) == set(b)
    for name in a:
        assert np.array_equal(a[name].view(np.uint32), b[name].view(np.uint32)), name


def float8(name: str, shape: tuple[int, int],
           blocks: tuple[int, int] = (16, 48)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random codes, scales and the float32 weights they mean."""
    codes = np.array(draw.integers(3, name, shape[0] * shape[1], 256), dtype=np.uint8).reshape(shape)
    codes = np.where((codes & 127) == 127, codes - 1, codes)  # not a number
    high, wide = blocks
    scale = np.abs(draw.bell(3, name + "/s", (-(-shape[0] // high), -(-shape[1] // wide)), 1e-3)) + np.float32(1e-4)
    exact = np.array([0.0 if code & 127 == 127 else e4m3(code) for code in range(256)], dtype=np.float32)
    weight = np.empty(shape, dtype=np.float32)
    for row in range(shape[0]):
        for first in range(0, shape[1], wide):
            weight[row, first:first + wide] = exact[codes[row, first:first + wide]] * scale[row // high, first // wide]
    return codes.astype(np.uint8), scale, weight


def eight_bits(old: tensorfile.Entry, blocks: tuple[int, int]) -> tuple[list[tensorfile.Entry], tensorfile.Entry]:
    """A matrix in 8 bits with the scales of its blocks, and its float32 twin."""
    codes, scale, weight = float8(old.name, old.shape, blocks)
    return ([entry(old.name, "F8_E4M3", codes), entry(old.name + "_scale_inv", "F32", scale)],
            entry(old.name, "F32", weight))


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tensorfile.Entry]]:
    """A checkpoint with 8-bit experts and projections, and its float32 twin."""
    root = tmp_path_factory.mktemp("float8")
    packed, plain = folder_of("dots_groups", root / "packed"), folder_of("dots_groups", root / "plain")
    one, other = [], []
    for old in entries_of("dots_groups"):
        if len(old.shape) == 2 and old.name.endswith("_proj.weight"):
            packed_entries, twin = eight_bits(old, tuple(FP8["weight_block_size"]))
            one += packed_entries
            other.append(twin)
        else:
            one.append(old)
            other.append(old)
    tensorfile.write(packed / "model.safetensors", one)
    tensorfile.write(plain / "model.safetensors", other)
    change_config(packed, quantization_config=FP8)
    return packed, plain, one


def test_every_byte_of_e4m3() -> None:
    table = places.float8_values()
    assert all(table[c] == np.float32(e4m3(c)) for c in range(256) if c & 127 != 127)
    assert np.isnan(table[[127, 255]]).all() and table.dtype == np.float32


def test_eight_bits_give_the_blob_of_their_float32_twin(eight: Any) -> None:
    same(eight[0], eight[1])


# what the hub's 8-bit files keep in 8 bits; latents, rope key and heads' factors lie across blocks of 128
MLA8 = re.compile(
    r".*\.(q_a_proj|q_b_proj|q_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj|gate_proj|up_proj|down_proj|wq_b|wk)\.weight")


@pytest.mark.parametrize("name", ["deepseek_v3_groups", "deepseek_v3_halves", "deepseek_v32_sparse", "glm_lite"])
def test_latent_attention_in_eight_bits_gives_the_blob_of_its_float32_twin(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kv_b_proj [9 * 40, 144] in blocks of 128 x 128: heads begin inside blocks, and strips inside heads."""
    monkeypatch.setattr("colibri.strips.STRIP_BYTES", 4096)
    known = cases.CASES[name]
    sizes = {"hidden": 160, "layers": 2, "heads": 9, "latent": 144, "nope": 24, "v": 16, "ff": 136, "experts": 4,
             "top_k": 2, "dense_layers": (0,), "q_latent": 136 if known.shape.q_latent else 0}
    config = {**known.config, "hidden_size": 160, "num_hidden_layers": 2, "num_attention_heads": 9,
              "num_key_value_heads": 9, "kv_lora_rank": 144, "qk_nope_head_dim": 24, "v_head_dim": 16,
              "intermediate_size": 136, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
              "q_lora_rank": sizes["q_latent"] or None, "first_k_dense_replace": 1}
    config.pop("mlp_layer_types", None)
    config.pop("rope_scaling", None)
    case = replace(known, shape=replace(known.shape, **sizes), config=config)
    folders, files = [tmp_path / "packed", tmp_path / "plain"], [[], []]
    for tensor, shape in checkpoints.tensors(case):
        plain = tensorfile.Entry(tensor, shape, "F32", lambda t=tensor, s=shape: checkpoints.values(case, t, s))
        eights, twin = eight_bits(plain, (128, 128)) if MLA8.fullmatch(tensor) else ([plain], plain)
        files[0] += eights
        files[1].append(twin)
    assert sum(e.dtype == "F8_E4M3" and e.shape == (360, 144) for e in files[0]) == 2
    for folder, entries in zip(folders, files, strict=True):
        checkpoints.build_case(case, folder)
        tensorfile.write(folder / "model.safetensors", entries)
    change_config(folders[0], quantization_config={**FP8, "weight_block_size": [128, 128]})
    same(*folders)
    scale = "model.layers.1.self_attn.kv_b_proj.weight_scale_inv"
    tensorfile.write(folders[0] / "model.safetensors", [e for e in files[0] if e.name != scale])
    (folders[0] / "m.colibri").unlink()
    assert f"tensor {scale!r} is missing" in refused(folders[0])


def test_eight_bit_files_that_do_not_fit_are_named(eight: Any, tmp_path: Path) -> None:
    folder = folder_of("dots_groups", tmp_path / "broken")
    name = "model.layers.0.self_attn.q_proj.weight"
    without = [e for e in eight[2] if e.name != name + "_scale_inv"]
    tensorfile.write(folder / "model.safetensors", without)
    change_config(folder, quantization_config=FP8)
    assert f"{name}_scale_inv" in refused(folder)
    tensorfile.write(folder / "model.safetensors", eight[2])
    change_config(folder, quantization_config={**FP8, "weight_block_size": [32, 32]})
    assert "q_proj.weight_scale_inv' has shape" in refused(folder)
    for wrong in ({**FP8, "weight_block_size": [0, 16]}, {**FP8, "fmt": "e5m2"}, {"quant_method": "gptq"}, MX, [1]):
        change_config(folder, quantization_config=wrong)
        assert "field 'quantization_config' is" in refused(folder)
    change_config(folder, quantization_config=...)
    assert "says nothing of its scales" in refused(folder)
    nan = [replace_data(e, 127) if e.name == name else e for e in eight[2]]
    tensorfile.write(folder / "model.safetensors", nan)
    change_config(folder, quantization_config=FP8)
    assert "expected a finite number" in refused(folder)


def replace_data(old: tensorfile.Entry, byte: int) -> tensorfile.Entry:
    """The same tensor with one byte changed."""
    values = old.data().copy()
    values.reshape(-1)[5] = byte
    return entry(old.name, old.dtype, values)


def mx(name: str, rows: tuple[int, ...], columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random blocks, scales and the float32 weights they mean, [.., columns]."""
    count = int(np.prod(rows))
    blocks = np.array(draw.integers(4, name, count * columns // 2, 256), dtype=np.uint8)
    scales = np.array(draw.integers(4, name + "/s", count * columns // 32, 5), dtype=np.uint8) + 122
    weight = np.empty(count * columns, dtype=np.float32)
    for index, byte in enumerate(blocks):
        power = 2.0 ** (int(scales[index // 16]) - 127)
        weight[2 * index] = e2m1(int(byte) & 15) * power
        weight[2 * index + 1] = e2m1(int(byte) >> 4) * power
    return (blocks.reshape(*rows, columns // 32, 16), scales.reshape(*rows, columns // 32),
            weight.reshape(*rows, columns))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tensorfile.Entry]]:
    """A gpt_oss checkpoint with packed experts, and its twin with transposed float32 ones."""
    root = tmp_path_factory.mktemp("mxfp4")
    packed, plain = folder_of("gpt_oss_packed", root / "packed"), folder_of("gpt_oss_packed", root / "plain")
    one, other = [], []
    for old in entries_of("gpt_oss_packed"):
        if old.name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = old.shape
            blocks, scales, weight = mx(old.name, (experts, rows), columns)
            one += [entry(old.name + "_blocks", "U8", blocks), entry(old.name + "_scales", "U8", scales)]
            other.append(entry(old.name, "F32", np.ascontiguousarray(weight.transpose(0, 2, 1))))
        else:
            one.append(old)
            other.append(old)
    tensorfile.write(packed / "model.safetensors", one)
    tensorfile.write(plain / "model.safetensors", other)
    change_config(packed, quantization_config=MX)
    return packed, plain, one


def test_packed_experts_give_the_blob_of_their_float32_twin(four: Any) -> None:
    same(four[0], four[1])


def test_packed_files_that_do_not_fit_are_named(four: Any, tmp_path: Path) -> None:
    folder = folder_of("gpt_oss_packed", tmp_path / "broken")
    change_config(folder, quantization_config=MX)
    scales = "model.layers.1.mlp.experts.down_proj_scales"
    tensorfile.write(folder / "model.safetensors", [e for e in four[2] if e.name != scales])
    assert scales in refused(folder)
    cut = [entry(e.name, e.dtype, e.data()[..., :1]) if e.name == scales else e for e in four[2]]
    tensorfile.write(folder / "model.safetensors", cut)
    assert scales in refused(folder) and "has shape" in refused(folder)


@pytest.mark.oracle
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not installed")
def test_transformers_unpacks_the_same_weights(four: Any) -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    by_name = {e.name: e.data() for e in four[2]}
    blocks, scales, weight = mx(name := "model.layers.0.mlp.experts.gate_up_proj", (4, 128), 64)
    assert np.array_equal(blocks, by_name[name + "_blocks"])
    theirs = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    assert np.array_equal(theirs.numpy(), weight.transpose(0, 2, 1))


@pytest.mark.parametrize("piece,near", [(64, 1), (1 << 12, 1 << 20), (1 << 23, 1 << 16)])
def test_scattered_numbers_are_the_same_however_they_are_read(piece: int, near: int, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("gpt_oss_sinks", tmp_path / "hf")
    usual = floats_of(convert(folder, tmp_path / "usual.colibri", PLAIN).path)
    monkeypatch.setattr(places, "PIECE_BYTES", piece)
    monkeypatch.setattr(places, "NEAR_BYTES", near)
    monkeypatch.setattr("colibri.strips.STRIP_BYTES", 4096)
    found = floats_of(convert(folder, tmp_path / "found.colibri", replace(PLAIN, source_name="x")).path)
    assert all(np.array_equal(usual[name], found[name]) for name in usual)
