#!/usr/bin/env python3
"""Writes tests/model/fixtures/*.safetensors: weights, tokens, and the loss and gradients that PyTorch computes from
them in double precision.

A file is in the safetensors format: the length of a JSON header (8 bytes, little-endian), the header, the data; the
header gives dtype, shape and place of each tensor, and under "__metadata__" the model's configuration. Tensors: each
parameter in PyTorch's shape (F32), "gradient." + each parameter (F32), "tokens" (B, T+1; I32), "loss_sum" (F64). With
experts also "balance" (F64), and the gradients are those of loss_sum + aux_loss * T * balance.

    make_fixtures.py [NAME…]    writes these alone"""

import json
import pathlib
import struct
import sys

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))
from pytorch_llama import Llama  # noqa: E402

# Grouped queries, several blocks of FFN columns and of vocabulary rows, a sequence longer than a block of attention.
UNTIED = dict(layers=2, hidden=32, heads=4, kv_heads=2, ffn=24, vocab=40, sequence=70, tied=0, ffn_block=8,
              vocab_block=8, batch=2, theta=10000.0, eps=1e-5)
# One key head for all, a head dimension that is no power of two, odd sizes.
TIED = dict(layers=3, hidden=18, heads=3, kv_heads=1, ffn=15, vocab=33, sequence=9, tied=1, ffn_block=5,
            vocab_block=3, batch=3, theta=500.0, eps=1e-6)
# Experts in every layer, two choices of seven.
EXPERTS = dict(layers=2, hidden=24, heads=4, kv_heads=2, ffn=16, vocab=32, sequence=21, tied=0, ffn_block=8,
               vocab_block=8, batch=3, theta=10000.0, eps=1e-5, experts=7, top_k=2, moe_every=1, expert_ffn=12,
               shared_expert=0, aux_loss=0.125)
# Experts in every other layer, beside an FFN for all tokens; three choices.
SHARED_EXPERT = dict(EXPERTS, layers=3, tied=1, experts=5, top_k=3, moe_every=2, expert_ffn=9, shared_expert=1,
                     aux_loss=2.0)


def write_safetensors(path, tensors, metadata):
    kinds = {"float32": "F32", "float64": "F64", "int32": "I32"}
    header, data = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, b""
    for name, array in tensors.items():
        payload = array.tobytes()
        header[name] = dict(dtype=kinds[str(array.dtype)], shape=list(array.shape),
                            data_offsets=[len(data), len(data) + len(payload)])
        data += payload
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name, config, seed):
    torch.manual_seed(seed)
    keys = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "experts", "top_k", "moe_every",
            "expert_ffn", "shared_expert")
    shape = {key: config[key] for key in keys if key in config}
    model = Llama(**shape, tied=bool(config["tied"]), theta=config["theta"], eps=config["eps"])
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that every part of the model matters
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.dim() == 1 else 0.0))
    tokens = torch.randint(config["vocab"], (config["batch"], config["sequence"] + 1))
    model.double()
    loss_sum = model(tokens) * config["batch"] * config["sequence"]
    (loss_sum + config.get("aux_loss", 0.0) * config["sequence"] * model.balance).backward()
    tensors = {}
    for key, parameter in model.named_parameters():  # lists a tied weight once
        tensors[key] = parameter.detach().numpy().astype(numpy.float32)
        tensors["gradient." + key] = parameter.grad.numpy().astype(numpy.float32)
    tensors["tokens"] = tokens.numpy().astype(numpy.int32)
    tensors["loss_sum"] = loss_sum.detach().numpy().reshape(1)
    if "experts" in config:
        tensors["balance"] = model.balance.detach().numpy().reshape(1)
    write_safetensors(HERE / "fixtures" / f"{name}.safetensors", tensors, config)


if __name__ == "__main__":
    fixtures = dict(untied=(UNTIED, 1), tied=(TIED, 2), experts=(EXPERTS, 3), shared_expert=(SHARED_EXPERT, 4))
    for wanted in sys.argv[1:] or fixtures:
        make(wanted, *fixtures[wanted])
