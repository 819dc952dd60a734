"""A GGUF reader, tokenizer and Llama forward pass in numpy, written from the formats' descriptions and independent of the engine.

Everything is float64 but for two roundings that the engine makes on purpose and that can be emulated: activations that meet
quantised weights are rounded to int8 per block of 32, and keys and values to f16.
"""
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
BLOCK = 32


class Gguf:
    """Metadata in `kv`; tensors by name through `tensor`."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 0
        magic, version, n_tensors, n_kv = self._unpack("4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path}: not a GGUF v3 file")
        self.kv = {}
        for _ in range(n_kv):
            key = self._string().decode()
            self.kv[key] = self._value(self._unpack("I")[0])
        self.infos = {}
        for _ in range(n_tensors):
            name = self._string().decode()
            n_dims = self._unpack("I")[0]
            dims = self._unpack(f"{n_dims}Q")
            self.infos[name] = (dims, *self._unpack("IQ"))
        align = self.kv.get("general.alignment", 32)
        self.base = (self.at + align - 1) // align * align

    def _unpack(self, fmt):
        values = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return values

    def _string(self):
        n = self._unpack("Q")[0]
        self.at += n
        return self.data[self.at - n:self.at]

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            item, n = self._unpack("IQ")
            return [self._value(item) for _ in range(n)]
        return self._unpack(SCALARS[kind])[0]

    def tensor(self, name):
        """(float64 array with outputs first, type)"""
        dims, kind, offset = self.infos[name]
        n = int(np.prod(dims))
        start = self.base + offset
        if kind == F32:
            flat = np.frombuffer(self.data, "<f4", n, start)
        elif kind == F16:
            flat = np.frombuffer(self.data, "<f2", n, start)
        elif kind == Q8_0:
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", BLOCK)]), n // BLOCK, start)
            flat = blocks["d"].astype(np.float64)[:, None] * blocks["q"]
        elif kind == Q4_0:
            blocks = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "u1", BLOCK // 2)]), n // BLOCK, start)
            codes = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float64) - 8
            flat = blocks["d"].astype(np.float64)[:, None] * codes
        else:
            raise ValueError(f"{name}: unknown tensor type {kind}")
        return flat.astype(np.float64).reshape(dims[::-1]), kind


class Tokenizer:
    """SentencePiece BPE: merge the best-scored neighbouring pair until none is left; bytes for what the vocabulary lacks."""

    def __init__(self, gguf):
        self.pieces = {t: i for i, t in enumerate(gguf.kv["tokenizer.ggml.tokens"])}
        self.scores = gguf.kv["tokenizer.ggml.scores"]
        self.bos = gguf.kv["tokenizer.ggml.bos_token_id"]
        self.prefix = gguf.kv.get("tokenizer.ggml.add_space_prefix", True)

    def _merge(self, parts):
        while True:
            pairs = [(self.scores[self.pieces[a + b]], -i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                     if a + b in self.pieces]
            if not pairs:
                return parts
            i = -max(pairs)[1]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, text):
        text = (" " if self.prefix else "") + text
        ids = [self.bos]
        for part in self._merge([c.encode() for c in text.replace(" ", "\u2581")]):
            if part in self.pieces:
                ids.append(self.pieces[part])
            else:
                ids += [self.pieces[b"<0x%02X>" % byte] for byte in part]
        return ids


def quantise(x):
    """Rows rounded to int8 per block, in float32 as the engine does it."""
    blocks = x.astype(np.float32).reshape(len(x), -1, BLOCK)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    q = np.rint(blocks * inverse).astype(np.float64)
    return (q * (amax / np.float32(127)).astype(np.float64)).reshape(x.shape)


class Llama:
    def __init__(self, path):
        g = self.gguf = Gguf(path)
        arch = g.kv["general.architecture"].decode()
        self.n_layers = g.kv[f"{arch}.block_count"]
        self.n_heads = g.kv[f"{arch}.attention.head_count"]
        self.n_kv = g.kv.get(f"{arch}.attention.head_count_kv", self.n_heads)
        self.eps = g.kv[f"{arch}.attention.layer_norm_rms_epsilon"]
        self.rope_base = g.kv.get(f"{arch}.rope.freq_base", 10000.0)
        self.w = {name: g.tensor(name) for name in g.infos}
        self.embd = self.w["token_embd.weight"][0]
        self.head_dim = self.w["blk.0.attn_q.weight"][0].shape[0] // self.n_heads

    def _norm(self, x, name):
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.eps) * self.w[name][0]

    def _product(self, x, name, emulate):
        w, kind = self.w[name]
        if emulate and kind in (Q8_0, Q4_0):
            x = quantise(x)
        return x @ w.T

    def _rope(self, x):
        """x [positions, heads, head_dim]: neighbouring pairs are rotated."""
        n, _, hd = x.shape
        angle = np.arange(n)[:, None] * self.rope_base ** (-np.arange(0, hd, 2) / hd)
        turn = np.exp(1j * angle)[:, None, :]
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)

    def _attention(self, q, k, v):
        n = len(q)
        group = self.n_heads // self.n_kv
        out = np.empty_like(q)
        mask = np.triu(np.full((n, n), -np.inf), 1)
        for h in range(self.n_heads):
            s = q[:, h] @ k[:, h // group].T / np.sqrt(self.head_dim) + mask
            p = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = p / p.sum(axis=1, keepdims=True) @ v[:, h // group]
        return out.reshape(n, -1)

    def logits(self, ids, emulate):
        """Logits of every position. emulate: with the engine's roundings."""
        x = self.embd[ids]
        n = len(ids)
        round_kv = (lambda a: a.astype(np.float32).astype(np.float16).astype(np.float64)) if emulate else (lambda a: a)
        for layer in range(self.n_layers):
            b = f"blk.{layer}."
            a = self._norm(x, b + "attn_norm.weight")
            q, k, v = (self._product(a, b + f"attn_{c}.weight", emulate).reshape(n, -1, self.head_dim) for c in "qkv")
            att = self._attention(self._rope(q), round_kv(self._rope(k)), round_kv(v))
            x = x + self._product(att, b + "attn_output.weight", emulate)
            a = self._norm(x, b + "ffn_norm.weight")
            gate = self._product(a, b + "ffn_gate.weight", emulate)
            up = self._product(a, b + "ffn_up.weight", emulate)
            x = x + self._product(gate / (1 + np.exp(-gate)) * up, b + "ffn_down.weight", emulate)
        head = "output.weight" if "output.weight" in self.w else "token_embd.weight"
        return self._product(self._norm(x, "output_norm.weight"), head, emulate)
