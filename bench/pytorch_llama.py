#!/usr/bin/env python3
"""The model of src/model in PyTorch, written independently: the yardstick for speed, and the reference of the fixtures
in tests/model/fixtures.

    pytorch_llama.py [--threads 1] [--processes 1] [--seconds 10] [--layers 6 …]

prints tokens per second of whole training steps (forward, backward, AdamW), and of forward and backward alone. With
--processes 2 or more it trains data-parallel (DistributedDataParallel over gloo), each process on its own batch."""

import argparse
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        batch, length, hidden = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = q @ k.transpose(2, 3) * self.head_dim**-0.5
        out = F.softmax(scores + mask, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, hidden))


class FeedForward(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.w1 = nn.Linear(hidden, ffn, bias=False)  # gate
        self.w2 = nn.Linear(ffn, hidden, bias=False)  # down
        self.w3 = nn.Linear(hidden, ffn, bias=False)  # up

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """Mixtral's layer of experts: each token goes to the top_k most probable ones, weighted by their probabilities
    divided by the sum of these."""

    def __init__(self, hidden, ffn, experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(Expert(hidden, ffn) for _ in range(experts))

    def forward(self, x):
        """x (B, T, C). Returns the output and the load-balancing loss summed over the B samples: for each, the number
        of experts times the sum over experts of the fraction of choices and the mean probability."""
        probabilities = F.softmax(self.gate(x), dim=-1)
        weights, choices = probabilities.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            sample, token, place = torch.where(choices == number)
            routed = expert(x[sample, token]) * weights[sample, token, place, None]
            out = out.index_put((sample, token), routed, accumulate=True)
        fractions = F.one_hot(choices, len(self.experts)).to(x.dtype).mean((1, 2))
        return out, len(self.experts) * (fractions * probabilities.mean(1)).sum()


class Layer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn, eps, mixture):
        super().__init__()
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(hidden, heads, kv_heads)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = FeedForward(hidden, ffn) if ffn else None
        self.block_sparse_moe = Mixture(hidden, *mixture) if mixture else None

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        normed, balance, branch = self.post_attention_layernorm(x), 0.0, 0.0
        if self.mlp:
            branch = self.mlp(normed)
        if self.block_sparse_moe:
            routed, balance = self.block_sparse_moe(normed)
            branch = branch + routed
        return x + branch, balance


class Llama(nn.Module):
    """Shapes and names of the parameters are those of Hugging Face's LlamaForCausalLM, of layers with experts those of
    its MixtralForCausalLM, without their "model." prefix. Layers whose number moe_every divides have `experts` (if not
    0) of expert_ffn columns in place of the FFN or, with shared_expert, besides it."""

    def __init__(self, layers, hidden, heads, kv_heads, ffn, vocab, sequence, tied=False, theta=10000.0, eps=1e-5,
                 experts=0, top_k=2, moe_every=1, expert_ffn=0, shared_expert=False):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        mixture = (expert_ffn, experts, top_k)
        sparse = [experts > 0 and layer % moe_every == 0 for layer in range(layers)]
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, ffn if shared_expert or not has else 0, eps,
                                          mixture if has else None) for has in sparse)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.apply(self.initialize)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
        head_dim = hidden // heads
        frequencies = theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
        angles = torch.arange(sequence).double()[:, None] * torch.cat((frequencies, frequencies))
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        mask = torch.full((sequence, sequence), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    @staticmethod
    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        """tokens (B, T+1): the mean cross-entropy of the last T given the ones before. self.balance is then the
        load-balancing loss summed over samples and layers."""
        x, self.balance = self.embed_tokens(tokens[:, :-1]), 0.0
        for layer in self.layers:
            x, balance = layer(x, self.cos, self.sin, self.mask)
            self.balance = self.balance + balance
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def tokens_per_second(step, tokens, seconds):
    """Tokens per second of step(), which handles `tokens` of them. The first step is not counted, the second tells how
    many to take; all processes take as many as the slowest."""
    step()
    start = time.perf_counter()
    step()
    steps = torch.tensor(math.ceil(seconds / (time.perf_counter() - start)))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(steps, torch.distributed.ReduceOp.MIN)
        torch.distributed.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return int(steps) * tokens / (time.perf_counter() - start)


def measure(options, rank):
    torch.manual_seed(1)
    model = Llama(options.layers, options.hidden, options.heads, options.kv_heads, options.ffn, options.vocab,
                  options.sequence)
    if options.processes > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    torch.manual_seed(1 + rank)
    batch = torch.randint(options.vocab, (options.batch, options.sequence + 1))

    def pass_only():
        optimizer.zero_grad(set_to_none=True)
        model(batch).backward()

    def step():
        pass_only()
        optimizer.step()

    count = options.batch * options.sequence
    if options.processes > 1:
        rate = options.processes * tokens_per_second(step, count, options.seconds)
        if rank == 0:
            print(f"{rate:.0f} tokens/s, {options.processes} processes, training steps")
        return
    print(f"{tokens_per_second(step, count, options.seconds):.0f} tokens/s, training steps")
    print(f"{tokens_per_second(pass_only, count, options.seconds):.0f} tokens/s, forward and backward")


def process(rank, options):
    torch.set_num_threads(options.threads)
    if options.processes > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=options.processes)
    measure(options, rank)
    if options.processes > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="per process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    for name, value in dict(layers=6, hidden=384, heads=6, kv_heads=6, ffn=1024, vocab=256, sequence=256,
                            batch=8).items():
        parser.add_argument("--" + name, type=int, default=value)
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(options.threads):  # read when the library is loaded
        os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if options.processes == 1:
        process(0, options)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29400")
    torch.multiprocessing.spawn(process, (options,), options.processes)


if __name__ == "__main__":
    main()
