"""Reproducible weights and inputs of the golden files, from nothing but names and seeds."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(os.environ.get("EQUIAV_GOLDEN_DIR") or Path(__file__).parent / "golden")
DEFAULT = Path(__file__).parent / "golden"
BASE = {
    "embed_dim": 768,
    "modality_specific_depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4,
    "proj_hidden_dim": 2048,
    "inter_proj_out_dim": 512,
    "intra_proj_out_dim": 512,
    "aug_emb_dim": 256,
    "img_size": 224,
    "audio_length": 1024,
    "num_mel_bins": 128,
}


def positions(width, rows, columns):
    """The fixed table, written out from its description."""
    q = width // 4
    w = 10000.0 ** (-np.arange(q) / q)
    table = np.zeros((rows * columns, width))
    for r in range(rows):
        for c in range(columns):
            table[r * columns + c] = np.concatenate([np.sin(c * w), np.cos(c * w), np.sin(r * w), np.cos(r * w)])
    return torch.from_numpy(table).float()[None]


def encoder_shapes(m, s, channels=3):
    d, hidden, tokens = s["embed_dim"], int(s["embed_dim"] * s["mlp_ratio"]), {}
    tokens[f"modality_{m}"] = (1, 1, d)
    tokens[f"patch_embed_{m}.proj.weight"], tokens[f"patch_embed_{m}.proj.bias"] = (d, channels, 16, 16), (d,)
    for i in range(s["modality_specific_depth"]):
        block = f"blocks_{m}.{i}"
        for norm in ("norm1", "norm1_a", "norm1_v", "norm2", "norm2_a", "norm2_v"):
            tokens[f"{block}.{norm}.weight"] = tokens[f"{block}.{norm}.bias"] = (d,)
        tokens[f"{block}.attn.qkv.weight"], tokens[f"{block}.attn.qkv.bias"] = (3 * d, d), (3 * d,)
        tokens[f"{block}.attn.proj.weight"], tokens[f"{block}.attn.proj.bias"] = (d, d), (d,)
        tokens[f"{block}.mlp.fc1.weight"], tokens[f"{block}.mlp.fc1.bias"] = (hidden, d), (hidden,)
        tokens[f"{block}.mlp.fc2.weight"], tokens[f"{block}.mlp.fc2.bias"] = (d, hidden), (d,)
    tokens[f"norm_{m}.weight"] = tokens[f"norm_{m}.bias"] = (d,)
    return tokens


def mlp_head_shapes(name, width, hidden, out):
    shapes = {}
    for i, (a, b) in enumerate([(hidden, width), (hidden, hidden), (out, hidden)], start=1):
        shapes[f"{name}.fc{i}.weight"], shapes[f"{name}.fc{i}.bias"] = (a, b), (a,)
        shapes[f"{name}.norm{i}.weight"] = shapes[f"{name}.norm{i}.bias"] = (a,)
    return shapes


def pretrain_shapes(constructor):
    s = {**BASE, **constructor}
    d, hidden, e = s["embed_dim"], int(s["embed_dim"] * s["mlp_ratio"]), s["aug_emb_dim"]
    shapes = {}
    for m, d_t in (("a", 24), ("v", 18)):
        shapes |= encoder_shapes(m, s)
        shapes[f"norm_{m}_aug.weight"] = shapes[f"norm_{m}_aug.bias"] = (d,)
        for i, width in ((0, d_t), (2, e), (4, e)):
            shapes[f"aug_encoder_{m}.{i}.weight"], shapes[f"aug_encoder_{m}.{i}.bias"] = (e, width), (e,)
        c = f"cross_attn_{m}"
        shapes[f"{c}.norm_aug.weight"] = shapes[f"{c}.norm_aug.bias"] = (e,)
        for p, width in (("q", e), ("k", d), ("v", d)):
            shapes[f"{c}.attn.to_{p}.weight"], shapes[f"{c}.attn.to_{p}.bias"] = (512, width), (512,)
        shapes[f"{c}.attn.to_out.weight"] = (d, 512)
        shapes[f"{c}.norm.weight"] = shapes[f"{c}.norm.bias"] = (d,)
        shapes[f"{c}.mlp.fc1.weight"], shapes[f"{c}.mlp.fc1.bias"] = (hidden, d), (hidden,)
        shapes[f"{c}.mlp.fc2.weight"], shapes[f"{c}.mlp.fc2.bias"] = (d, hidden), (d,)
        shapes |= mlp_head_shapes(f"pred_{m}_intra", d, s["proj_hidden_dim"], s["intra_proj_out_dim"])
        shapes |= mlp_head_shapes(f"pred_{m}_inter", d, s["proj_hidden_dim"], s["inter_proj_out_dim"])
    return shapes


def draw(key, shape, scale, salt=""):
    n = np.random.RandomState(zlib.crc32((salt + key).encode("ascii"))).standard_normal(shape)
    norm = any(part.startswith("norm") for part in key.split("."))
    value = (1 + 0.02 * n if key.endswith("weight") else 0.02 * n) if norm else scale * n
    return torch.from_numpy(np.asarray(value)).float()


def state(shapes, sizes, scale, salt=""):
    """A released checkpoint (float32, with its prefix) of drawn weights and fixed position tables."""
    s = {**BASE, **sizes}
    out = {key: draw(key, shape, scale, salt) for key, shape in shapes.items()}
    out["pos_embed_a"] = positions(s["embed_dim"], s["num_mel_bins"] // 16, s["audio_length"] // 16)
    out["pos_embed_v"] = positions(s["embed_dim"], s["img_size"] // 16, s["img_size"] // 16)
    return {f"__M__.{key}": value for key, value in out.items()}


def field(seed, batch, channels, height, width, bh, bw):
    rs = np.random.RandomState(seed)
    coarse = rs.standard_normal((batch, channels, height // bh, width // bw))
    fine = rs.standard_normal((batch, channels, height, width))
    x = coarse.repeat(bh, axis=2).repeat(bw, axis=3) + 0.5 * fine
    return torch.from_numpy(x).float()


def inputs(golden):
    """Spectrograms (one channel), pictures, their augmented versions and the vectors of a golden file."""
    recipe = golden["recipe"]
    s = {**BASE, **golden["constructor"]}
    n, frames, bins, side, b = (
        recipe["batch"],
        s["audio_length"],
        s["num_mel_bins"],
        s["img_size"],
        recipe["image_block"],
    )
    seeds, vectors, count = recipe["field_seeds"], recipe["vector_seeds"], recipe["representations"]
    out = {k: field(seeds[k], n, 1, frames, bins, frames // 16, bins // 8) for k in ("a", "a_aug")}
    out |= {k: field(seeds[k], n, 3, side, side, b, b) for k in ("v", "v_aug")}
    for m, d_t in (("a", 24), ("v", 18)):
        out[f"t_{m}"] = torch.from_numpy(np.random.RandomState(vectors[f"t_{m}"]).standard_normal((n, d_t))).float()
        many = np.random.RandomState(vectors[f"t_{m}_list"]).standard_normal((n, count, d_t))
        out[f"t_{m}_list"] = torch.from_numpy(many).float()
    return out


def golden_files():
    """Every pretrain_*.json that has its .npz beside it."""
    return sorted(p for p in GOLDEN.glob("pretrain_*.json") if p.with_suffix(".npz").exists())


def read(path):
    return json.loads(path.read_text())
