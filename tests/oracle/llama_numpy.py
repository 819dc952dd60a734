"""A GGUF reader, tokenizer and Llama forward pass in numpy, written from the formats' descriptions and independent of the engine.

Everything is float64 but for two roundings that the engine makes on purpose and that can be emulated: activations that meet
quantised weights are rounded to int8 per block of 32, and keys and values to f16.
"""
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30
FLOATS = (F32, F16, BF16)
BLOCK = 32
SUPER = 256


def nibbles(q):
    """Bytes of 32 values -> codes: low nibbles first, then high ones."""
    return np.concatenate([q & 15, q >> 4], axis=-1).astype(np.float64)


def fifth_bits(h):
    """A 32-bit word -> 32 bits, in units of 16."""
    return (h[:, None] >> np.arange(BLOCK) & 1) * 16.0


def six_bit_scales(s):
    """The 12 bytes of a Q4_K or Q5_K super-block -> 8 scales and 8 minimums."""
    s = s.astype(np.int64)
    scales = np.concatenate([s[:, 0:4] & 63, s[:, 8:12] & 15 | s[:, 0:4] >> 6 << 4], axis=1)
    mins = np.concatenate([s[:, 4:8] & 63, s[:, 8:12] >> 4 | s[:, 4:8] >> 6 << 4], axis=1)
    return scales.astype(np.float64), mins.astype(np.float64)


def decode_q4_0(b):
    return (nibbles(b["q"]) - 8) * b["d"][:, None]


def decode_q4_1(b):
    return nibbles(b["q"]) * b["d"][:, None] + b["m"][:, None]


def decode_q5_0(b):
    return (nibbles(b["q"]) + fifth_bits(b["h"]) - 16) * b["d"][:, None]


def decode_q5_1(b):
    return (nibbles(b["q"]) + fifth_bits(b["h"])) * b["d"][:, None] + b["m"][:, None]


def decode_q8_0(b):
    return b["q"] * b["d"][:, None]


def k_values(b, codes):
    """codes [n][8][32] of Q4_K or Q5_K."""
    scales, mins = six_bit_scales(b["s"])
    return b["d"][:, None, None] * scales[:, :, None] * codes - b["m"][:, None, None] * mins[:, :, None]


def k_nibbles(q):
    """128 bytes -> [8][32]: each 32 bytes hold two blocks."""
    return nibbles(q.reshape(-1, 4, BLOCK)).reshape(-1, 8, BLOCK)


def decode_q4_k(b):
    return k_values(b, k_nibbles(b["q"]))


def decode_q5_k(b):
    high = b["h"][:, None, :] >> np.arange(8)[None, :, None] & 1
    return k_values(b, k_nibbles(b["q"]) + 16.0 * high)


def decode_q6_k(b):
    """Two halves of 128 values: 64 bytes of low nibbles, 32 bytes of four 2-bit fields."""
    low = b["q"].reshape(-1, 2, 2, BLOCK)
    low = np.stack([low[:, :, 0] & 15, low[:, :, 1] & 15, low[:, :, 0] >> 4, low[:, :, 1] >> 4], axis=2)
    high = b["h"].reshape(-1, 2, 1, BLOCK) >> np.array([0, 2, 4, 6])[None, None, :, None] & 3
    codes = (low + 16.0 * high - 32).reshape(-1, 16, 16)
    return b["d"][:, None, None] * b["s"].astype(np.float64)[:, :, None] * codes


# The block of each type: values, fields in the file, and what they mean.
BLOCKS = {
    Q4_0: (BLOCK, [("d", "<f2"), ("q", "u1", 16)], decode_q4_0),
    Q4_1: (BLOCK, [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)], decode_q4_1),
    Q5_0: (BLOCK, [("d", "<f2"), ("h", "<u4"), ("q", "u1", 16)], decode_q5_0),
    Q5_1: (BLOCK, [("d", "<f2"), ("m", "<f2"), ("h", "<u4"), ("q", "u1", 16)], decode_q5_1),
    Q8_0: (BLOCK, [("d", "<f2"), ("q", "i1", BLOCK)], decode_q8_0),
    Q4_K: (SUPER, [("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128)], decode_q4_k),
    Q5_K: (SUPER, [("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128)], decode_q5_k),
    Q6_K: (SUPER, [("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2")], decode_q6_k),
}


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
        elif kind == BF16:
            flat = (np.frombuffer(self.data, "<u2", n, start).astype(np.uint32) << 16).view(np.float32)
        elif kind in BLOCKS:
            values, fields, decode = BLOCKS[kind]
            blocks = np.frombuffer(self.data, np.dtype(fields), n // values, start)
            wide = {f: blocks[f].astype(np.float64) if f in "dm" else blocks[f] for f in blocks.dtype.names}
            flat = decode(wide)
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
        self.neox = arch != "llama"
        hd = self.head_dim
        self.frequency = self.rope_base ** (-np.arange(0, hd, 2) / hd) / g.kv.get(f"{arch}.rope.scaling.factor", 1.0)
        if "rope_freqs.weight" in self.w:
            self.frequency = self.frequency / self.w["rope_freqs.weight"][0]

    def _norm(self, x, name):
        """Over the last axis. A model without such a norm leaves x as it is."""
        if name not in self.w:
            return x
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.w[name][0]

    def _product(self, x, name, emulate):
        w, kind = self.w[name]
        if emulate and kind not in FLOATS:
            x = quantise(x)
        bias = name.replace(".weight", ".bias")
        return x @ w.T + (self.w[bias][0] if bias in self.w else 0)

    def _rope(self, x):
        """x [positions, heads, head_dim]: pairs (2i, 2i + 1) are rotated, or (i, i + head_dim / 2)."""
        n, _, hd = x.shape
        turn = np.exp(1j * np.arange(n)[:, None] * self.frequency)[:, None, :]
        if self.neox:
            z = (x[..., :hd // 2] + 1j * x[..., hd // 2:]) * turn
            return np.concatenate([z.real, z.imag], axis=-1)
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)

    def _attention(self, q, k, v):
        n = len(q)
        group = self.n_heads // self.n_kv
        out = np.empty(q.shape)
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
            q, k = self._norm(q, b + "attn_q_norm.weight"), self._norm(k, b + "attn_k_norm.weight")
            att = self._attention(self._rope(q), round_kv(self._rope(k)), round_kv(v))
            x = x + self._product(att, b + "attn_output.weight", emulate)
            a = self._norm(x, b + "ffn_norm.weight")
            gate = self._product(a, b + "ffn_gate.weight", emulate)
            up = self._product(a, b + "ffn_up.weight", emulate)
            x = x + self._product(gate / (1 + np.exp(-gate)) * up, b + "ffn_down.weight", emulate)
        head = "output.weight" if "output.weight" in self.w else "token_embd.weight"
        return self._product(self._norm(x, "output_norm.weight"), head, emulate)
