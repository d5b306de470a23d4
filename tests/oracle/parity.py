"""Writes tests/fixtures/parity-{vip,dpcap}.safetensors: a small ViP and a small DP-Cap of the published architecture, written in
plain PyTorch from their descriptions, with one input, the loss, every gradient, ten AdamW steps and five greedy tokens.

Run from the repository's root with `pip install torch safetensors numpy`.
"""

import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(7)
torch.set_num_threads(1)

IMAGE, PATCH, WIDTH, DEPTH, HEADS = 12, 4, 16, 2, 2
DEC_WIDTH, DEC_DEPTH, DEC_HEADS = 12, 2, 3
GRID = IMAGE // PATCH
PATCHES = GRID * GRID
LENGTH, VOCABULARY = 7, 23


def axis(position, width):
    n = width // 2
    angles = [position * 10000 ** (-i / n) for i in range(n)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def table_2d(width):
    rows = [[0.0] * width]
    for y in range(GRID):
        for x in range(GRID):
            rows.append(axis(x, width // 2) + axis(y, width // 2))
    return torch.tensor(rows, dtype=torch.float64).float()


def table_1d(length, width):
    return torch.tensor([axis(p, width) for p in range(length)], dtype=torch.float64).float()


class Params(dict):
    """Random parameters by name; frozen ones get no gradient."""

    def add(self, name, *shape, scale=0.2, offset=0.0, trained=True, value=None):
        t = value.reshape(shape).clone() if value is not None else torch.randn(*shape) * scale + offset
        self[name] = t.requires_grad_(trained)

    def linear(self, name, out, into, bias=True):
        self.add(f"{name}.weight", out, into, scale=1.0 / math.sqrt(into))
        if bias:
            self.add(f"{name}.bias", out, scale=0.1)

    def norm(self, name, width):
        self.add(f"{name}.weight", width, scale=0.1, offset=1.0)
        self.add(f"{name}.bias", width, scale=0.1)

    def encoder(self, qkv_bias, trained_token):
        self.add("patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH, scale=0.15)
        self.add("patch_embed.proj.bias", WIDTH, scale=0.1)
        self.add("cls_token", 1, 1, WIDTH, trained=trained_token)
        self.add("pos_embed", 1, 1 + PATCHES, WIDTH, value=table_2d(WIDTH), trained=False)
        for i in range(DEPTH):
            self.block(f"blocks.{i}", WIDTH, qkv_bias)
        self.norm("norm", WIDTH)

    def block(self, name, width, qkv_bias):
        self.norm(f"{name}.norm1", width)
        self.linear(f"{name}.attn.qkv", 3 * width, width, qkv_bias)
        self.linear(f"{name}.attn.proj", width, width)
        self.norm(f"{name}.norm2", width)
        self.linear(f"{name}.mlp.fc1", 4 * width, width)
        self.linear(f"{name}.mlp.fc2", width, 4 * width)


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def norm(p, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)


def heads(x, count):
    b, t, w = x.shape
    return x.reshape(b, t, count, w // count).transpose(1, 2)


def attend(q, k, v, count, causal=False):
    q, k, v = heads(q, count), heads(k, count), heads(v, count)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        t = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2)


def block(p, name, x, count):
    h = linear(p, f"{name}.attn.qkv", norm(p, f"{name}.norm1", x, 1e-6))
    x = x + linear(p, f"{name}.attn.proj", attend(*h.chunk(3, -1), count))
    h = F.gelu(linear(p, f"{name}.mlp.fc1", norm(p, f"{name}.norm2", x, 1e-6)))
    return x + linear(p, f"{name}.mlp.fc2", h)


def patches(p, image):
    x = F.conv2d(image, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=PATCH)
    return x.flatten(2).transpose(1, 2)


def target(image):
    x = image.reshape(-1, 3, GRID, PATCH, GRID, PATCH)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, PATCHES, 3 * PATCH * PATCH)


def vip_loss(p, image, kept, restore, mask):
    x = patches(p, image) + p["pos_embed"][:, 1:]
    x = x[:, kept]
    x = torch.cat([p["cls_token"] + p["pos_embed"][:, :1], x], 1)
    for i in range(DEPTH):
        x = block(p, f"blocks.{i}", x, HEADS)
    x = linear(p, "decoder_embed", norm(p, "norm", x, 1e-6))
    tokens = p["mask_token"].expand(1, PATCHES - len(kept), DEC_WIDTH)
    body = torch.cat([x[:, 1:], tokens], 1)[:, restore]
    x = torch.cat([x[:, :1], body], 1) + p["decoder_pos_embed"]
    for i in range(DEC_DEPTH):
        x = block(p, f"decoder_blocks.{i}", x, DEC_HEADS)
    x = linear(p, "decoder_pred", norm(p, "decoder_norm", x, 1e-6))[:, 1:]
    error = (x - target(image)).square().mean(-1)
    return (error * mask).sum() / mask.sum()


def memory(p, image):
    x = torch.cat([p["cls_token"], patches(p, image)], 1) + p["pos_embed"]
    x = x + p["encoder_image_type_embedding"]
    for i in range(DEPTH):
        x = block(p, f"blocks.{i}", x, HEADS)
    x = linear(p, "decoder_embed", norm(p, "norm", x, 1e-6)) + p["decoder_pos_embed"]
    return x + p["decoder_image_type_embedding"]


def logits(p, seen, ids):
    x = p["text_embedding_layer_SimVLM.weight"][ids]
    x = x + p["text_decoder_pos_embed"][:, : x.shape[1]] + p["decoder_text_type_embedding"]
    for j in range(DEC_DEPTH):
        name = f"decoder.layers.{j}"
        h = linear(p, f"{name}.self_attn.c_attn", x)
        h = linear(p, f"{name}.self_attn.c_proj", attend(*h.chunk(3, -1), DEC_HEADS, causal=True))
        x = norm(p, f"{name}.norm1", x + h, 1e-5)
        k, v = linear(p, f"{name}.multihead_attn.kv_proj", seen).chunk(2, -1)
        h = attend(linear(p, f"{name}.multihead_attn.q_proj", x), k, v, DEC_HEADS)
        x = norm(p, f"{name}.norm2", x + linear(p, f"{name}.multihead_attn.c_proj", h), 1e-5)
        h = linear(p, f"{name}.linear2", F.gelu(linear(p, f"{name}.linear1", x)))
        x = norm(p, f"{name}.norm3", x + h, 1e-5)
    return linear(p, "decoder_pred_text.1", norm(p, "decoder_pred_text.0", x, 1e-5))


def caption_loss(p, image, ids):
    out = logits(p, memory(p, image), ids[:, :-1])
    return F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def vip_params():
    p = Params()
    p.encoder(qkv_bias=True, trained_token=True)
    p.linear("decoder_embed", DEC_WIDTH, WIDTH)
    p.add("mask_token", 1, 1, DEC_WIDTH)
    p.add("decoder_pos_embed", 1, 1 + PATCHES, DEC_WIDTH, value=table_2d(DEC_WIDTH), trained=False)
    for i in range(DEC_DEPTH):
        p.block(f"decoder_blocks.{i}", DEC_WIDTH, True)
    p.norm("decoder_norm", DEC_WIDTH)
    p.linear("decoder_pred", 3 * PATCH * PATCH, DEC_WIDTH)
    return p


def dpcap_params():
    p = Params()
    p.encoder(qkv_bias=False, trained_token=False)
    d = DEC_WIDTH
    p.add("encoder_image_type_embedding", 1, 1, WIDTH, trained=False)
    p.linear("decoder_embed", d, WIDTH)
    p.add("decoder_pos_embed", 1, 1 + PATCHES, d, value=table_2d(d), trained=False)
    p.add("decoder_image_type_embedding", 1, 1, d, trained=False)
    p.add("decoder_text_type_embedding", 1, 1, d, trained=False)
    p.add("text_embedding_layer_SimVLM.weight", VOCABULARY, d, scale=1.0)
    p.add("text_decoder_pos_embed", 1, LENGTH, d, value=table_1d(LENGTH, d), trained=False)
    for j in range(DEC_DEPTH):
        name = f"decoder.layers.{j}"
        p.linear(f"{name}.self_attn.c_attn", 3 * d, d, bias=False)
        p.linear(f"{name}.self_attn.c_proj", d, d, bias=False)
        p.linear(f"{name}.multihead_attn.q_proj", d, d, bias=False)
        p.linear(f"{name}.multihead_attn.kv_proj", 2 * d, d, bias=False)
        p.linear(f"{name}.multihead_attn.c_proj", d, d, bias=False)
        p.linear(f"{name}.linear1", 4 * d, d, bias=False)
        p.linear(f"{name}.linear2", d, 4 * d, bias=False)
        for k in (1, 2, 3):
            p.norm(f"{name}.norm{k}", d)
    p.norm("decoder_pred_text.0", d)
    p.linear("decoder_pred_text.1", VOCABULARY, d)
    return p


def record(p, loss_of, extra):
    """Loss and gradients at the start, then ten AdamW steps."""
    out = {f"param.{name}": t.detach().clone() for name, t in p.items()}
    trained = [t for t in p.values() if t.requires_grad]
    loss = loss_of(p)
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    out.update({f"grad.{name}": t.grad.clone() for name, t in p.items() if t.requires_grad})
    out.update(extra)
    optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.05)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(p)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    out["losses"] = torch.tensor(losses)
    out.update({f"stepped.{name}": t.detach().clone() for name, t in p.items() if t.requires_grad})
    return {name: t.float().contiguous() for name, t in out.items()}


def greedy(p, image):
    ids = [1]
    with torch.no_grad():
        seen = memory(p, image)
        for _ in range(5):
            ids.append(int(logits(p, seen, torch.tensor([ids]))[0, -1].argmax()))
    return torch.tensor(ids[1:])


def main():
    image = torch.randn(1, 3, IMAGE, IMAGE)
    order = torch.randperm(PATCHES)
    kept = order[: PATCHES // 4 + 1]
    restore = order.argsort()
    mask = torch.ones(1, PATCHES)
    mask[0, kept] = 0
    p = vip_params()
    extra = {"image": image, "kept": kept}
    save_file(record(p, lambda p: vip_loss(p, image, kept, restore, mask), extra), "tests/fixtures/parity-vip.safetensors")
    p = dpcap_params()
    ids = torch.tensor([[1, 5, 9, 5, 20, 2, 0]])
    extra = {"image": image, "ids": ids, "greedy": greedy(p, image)}
    save_file(record(p, lambda p: caption_loss(p, image, ids), extra), "tests/fixtures/parity-dpcap.safetensors")
    print("torch", torch.__version__)


if __name__ == "__main__":
    main()
