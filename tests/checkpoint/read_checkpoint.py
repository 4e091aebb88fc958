#!/usr/bin/env python3
"""Reads what evenkeel has written by the published safetensors format (github.com/huggingface/safetensors: 8 bytes with
the length of a JSON header, the header, the data) and computes the loss of these weights by Hugging Face's definition
of Llama and Mixtral: it must be the loss that the run had with them in its next step.

    read_checkpoint.py EVENKEEL --plain    in plain Python, written for this test alone
    read_checkpoint.py EVENKEEL --torch    with bench/pytorch_llama.py; exit status 77 where PyTorch is missing

The data are one sample, so that every step has the same."""

import array
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

STEP = 5
TEXT = b"Nothing is lost but what nobody holds."
MODELS = {
    "dense": dict(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24),
    "tied": dict(layers=1, hidden=12, heads=2, kv_heads=2, ffn=20, tied_embeddings="true", rope_theta=500.0),
    "experts": dict(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, experts=5, top_k=2, expert_ffn=10),
}


def read_safetensors(path):
    """{name: (shape, values)}, after checking all that the format asks for."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values()) and metadata["format"] == "pt"
    assert metadata["step"] == str(STEP), metadata
    assert data[8:9] == b"{" and (8 + length) % 8 == 0
    body, end, tensors = data[8 + length :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"} and entry["dtype"] == "F32"
        begin, next_end = entry["data_offsets"]
        assert begin == end and next_end - begin == 4 * math.prod(entry["shape"]), name
        end = next_end
        values = array.array("f", body[begin:end])
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = (entry["shape"], list(values))
    assert end == len(body)
    return tensors


def train(evenkeel, folder, model):
    """Trains, and returns the loss of the step after the checkpoint."""
    (folder / "text").write_bytes(TEXT)
    keys = dict(model, vocab=256, sequence=len(TEXT) - 1)
    lines = ["model: {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}",
             f"data: {{path: {folder}/text}}", "parallel: {dp: 2, tp: 2}", "batch: {global: 2}",
             f"train: {{steps: {STEP + 1}}}", "optimizer: {lr: 0.01}",
             f"checkpoint: {{dir: {folder}/saved, every: {STEP}}}"]
    (folder / "run.yaml").write_text("\n".join(lines) + "\n")
    subprocess.run([evenkeel, "train", "--quiet", "--config", folder / "run.yaml", "--metrics", folder / "m"], check=True)
    for line in (folder / "m").read_text().splitlines():
        entry = json.loads(line)
        if "event" not in entry and entry["step"] == STEP + 1:
            return entry["loss"]
    raise AssertionError("no such step")


# ------------------------------------------------------------------------------------------- in plain Python

def product(tensor, x):
    """W x for W (out, in)."""
    (rows, columns), values = tensor
    return [math.fsum(map(float.__mul__, values[r * columns : (r + 1) * columns], x)) for r in range(rows)]


def norm(tensor, x, eps):
    scale = 1.0 / math.sqrt(math.fsum(v * v for v in x) / len(x) + eps)
    return [w * v * scale for w, v in zip(tensor[1], x)]


def softmax(x):
    most = max(x)
    exponentials = [math.exp(v - most) for v in x]
    return [v / math.fsum(exponentials) for v in exponentials]


def rotate(x, position, theta):
    """The first half of a head against the second half."""
    half = len(x) // 2
    out = [0.0] * len(x)
    for i in range(half):
        angle = position * theta ** (-2.0 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[half + i] * math.sin(angle)
        out[half + i] = x[half + i] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def swiglu(gate, up, down, x):
    return product(down, [g / (1.0 + math.exp(-g)) * u for g, u in zip(product(gate, x), product(up, x))])


def feed_forward(weights, prefix, config, x):
    if "num_local_experts" not in config:
        return swiglu(*(weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")), x)
    prefix += "block_sparse_moe."
    probabilities = softmax(product(weights[prefix + "gate.weight"], x))
    chosen = sorted(range(len(probabilities)), key=lambda e: -probabilities[e])[: config["num_experts_per_tok"]]
    total, out = math.fsum(probabilities[e] for e in chosen), [0.0] * len(x)
    for e in chosen:
        part = swiglu(*(weights[f"{prefix}experts.{e}.{name}.weight"] for name in ("w1", "w3", "w2")), x)
        out = [o + p * probabilities[e] / total for o, p in zip(out, part)]
    return out


def attention(weights, prefix, config, rows):
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]

    def split(name, rotated):
        projected = [product(weights[f"{prefix}self_attn.{name}_proj.weight"], row) for row in rows]
        cut = [[row[h : h + size] for h in range(0, len(row), size)] for row in projected]
        return [[rotate(head, t, config["rope_theta"]) if rotated else head for head in row] for t, row in enumerate(cut)]

    q, k, v = split("q", True), split("k", True), split("v", False)
    out = []
    for t in range(len(rows)):
        mixed = []
        for head in range(heads):
            of = head // (heads // kv_heads)
            scores = softmax([math.fsum(map(float.__mul__, q[t][head], k[s][of])) / math.sqrt(size) for s in range(t + 1)])
            mixed += [math.fsum(scores[s] * v[s][of][d] for s in range(t + 1)) for d in range(size)]
        out.append(product(weights[prefix + "self_attn.o_proj.weight"], mixed))
    return out


def plain_loss(weights, config):
    hidden, eps = config["hidden_size"], config["rms_norm_eps"]
    embedding = weights["model.embed_tokens.weight"]
    x = [embedding[1][token * hidden : (token + 1) * hidden] for token in TEXT[:-1]]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        mixed = attention(weights, prefix, config, [norm(weights[prefix + "input_layernorm.weight"], row, eps) for row in x])
        x = [[a + b for a, b in zip(row, other)] for row, other in zip(x, mixed)]
        for t, row in enumerate(x):
            normed = norm(weights[prefix + "post_attention_layernorm.weight"], row, eps)
            x[t] = [a + b for a, b in zip(row, feed_forward(weights, prefix, config, normed))]
    head = embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]
    losses = [-math.log(softmax(product(head, norm(weights["model.norm.weight"], row, eps)))[target])
              for row, target in zip(x, TEXT[1:])]
    return math.fsum(losses) / len(losses)


# ---------------------------------------------------------------------------------------------- with PyTorch

def torch_loss(weights, config):
    import torch
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
    from pytorch_llama import Llama
    experts, ffn = config.get("num_local_experts", 0), config["intermediate_size"]
    model = Llama(config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"],
                  config["num_key_value_heads"], 0 if experts else ffn, config["vocab_size"], len(TEXT) - 1,
                  tied=config["tie_word_embeddings"], theta=config["rope_theta"], eps=config["rms_norm_eps"],
                  experts=experts, top_k=config.get("num_experts_per_tok", 2), expert_ffn=ffn)
    state = {name.removeprefix("model."): torch.tensor(values).reshape(shape)
             for name, (shape, values) in weights.items()}
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    model.load_state_dict(state)  # strict: no name is missing and none is unknown
    with torch.no_grad():
        return float(model(torch.tensor([list(TEXT)])))


def main():
    evenkeel, with_torch = sys.argv[1], "--torch" in sys.argv
    if with_torch:
        try:
            import torch  # noqa: F401
        except ImportError:
            sys.exit(77)
    for name, model in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            expected = train(evenkeel, folder, model)
            saved = folder / "saved" / (folder / "saved" / "latest").read_text().strip()
            assert saved.name == f"step-{STEP + 1:010}", saved
            saved = saved.with_name(f"step-{STEP:010}")
            weights, moments = (read_safetensors(saved / f"{kind}.safetensors") for kind in ("model", "optimizer"))
            assert sorted(moments) == sorted(p + n for n in weights for p in ("exp_avg.", "exp_avg_sq."))
            for moment, (shape, values) in moments.items():
                assert shape == weights[moment.split(".", 1)[1]][0]
                assert not moment.startswith("exp_avg_sq.") or min(values) >= 0.0
            config = json.loads((saved / "config.json").read_text())
            found = (torch_loss if with_torch else plain_loss)(weights, config)
            print(f"{name}: loss {found:.9f}, evenkeel's {expected:.9f}")
            assert abs(found / expected - 1.0) < 1e-5, name


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
