#!/usr/bin/env python3
"""Writes tests/fixtures/pytorch: small files of torch.save, what they must be read as, and interpolated tables.

    pip install torch==2.15.0 numpy safetensors
    python3 scripts/pytorch_fixtures.py
"""

import argparse
import io
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/pytorch"


def kinds():
    """Every element type, strides, shared storages, parameters, a scalar and an empty tensor."""
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 8 - 1
    whole = torch.tensor([0, 1, -2, 100])
    state = {
        "f64": torch.tensor([1.5, -2.25, 1e-3], dtype=torch.float64),
        "f32": base.clone(),
        "f16": base[0].to(torch.float16),
        "bf16": base[1].to(torch.bfloat16),
        "i64": whole,
        "i32": whole.to(torch.int32),
        "i16": whole.to(torch.int16),
        "i8": whole.to(torch.int8),
        "u8": whole.abs().to(torch.uint8),
        "bool": torch.tensor([[True, False], [False, True]]),
        "transposed": base[0].t(),
        "permuted": base.permute(2, 0, 1),
        "slice": base[1, ::2, 1:3],
        "row": base[1, 2],
        "shared": base,
        "expanded": torch.tensor([[7.0], [8.0]]).expand(2, 3),
        "scalar": torch.tensor(0.125),
        "empty": torch.zeros(0, 5),
        "parameter": torch.nn.Parameter(torch.tensor([[3.0, 4.0]])),
    }
    return state


def values(state):
    return {name: t.detach().to(torch.float32).contiguous().clone() for name, t in state.items()}


def training():
    """A training checkpoint: weights under `model`, with all that lies beside them."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    model = torch.nn.ModuleDict({"module": model})
    return model, {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 7,
        "scaler": {"scale": 65536.0, "growth_interval": 2000, "_growth_tracker": None},
        "args": argparse.Namespace(lr=1e-3, model="vip", flags=[1, (2, 3)], big=1 << 70),
    }


def tables():
    """Position tables and their interpolations to other grids, class row untouched."""
    torch.manual_seed(2)
    out = {}
    for old, new in [(4, 7), (7, 4), (3, 3), (2, 6), (14, 16), (5, 1)]:
        table = torch.randn(1, 1 + old * old, 4)
        grid = table[:, 1:].reshape(1, old, old, 4).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
        out[f"from.{old}.{new}"] = table
        out[f"to.{old}.{new}"] = torch.cat([table[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], 1).contiguous()
    return out


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    state = kinds()
    torch.save(state, OUT / "kinds.pth")
    save_file(values(state), OUT / "kinds.safetensors")
    torch.save(state["f32"].new_ones(3), OUT / "tensor.pth")
    model, checkpoint = training()
    torch.save(checkpoint, OUT / "training.pth")
    save_file({n.removeprefix("module."): t for n, t in values(model.state_dict()).items()}, OUT / "training.safetensors")
    torch.save({"w": torch.ones(2)}, OUT / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"w": torch.ones(2)}, OUT / "protocol4.pth", pickle_protocol=4)
    program = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), program)
    (OUT / "script.pth").write_bytes(program.getvalue())
    save_file(tables(), OUT / "tables.safetensors")
    for file in sorted(OUT.iterdir()):
        print(file.stat().st_size, file.name)


if __name__ == "__main__":
    main()
