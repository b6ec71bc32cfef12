#!/usr/bin/env python3
"""Writes bucket vectors without any code of the service: murmur3_x86_32 as its author published it, byte by byte.

    python3 vectors.py > buckets.json
"""
import json
import struct

MASK = 0xFFFFFFFF


def rotl(x, r):
    return ((x << r) | (x >> (32 - r))) & MASK


def murmur3_x86_32(data, seed=0):
    h = seed
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = struct.unpack_from("<I", data, i)[0]
        h ^= rotl(k * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
        h = (rotl(h, 13) * 5 + 0xE6546B64) & MASK
    tail, k = data[whole:], 0
    for i, b in enumerate(tail):
        k |= b << (8 * i)
    if tail:
        h ^= rotl(k * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    h ^= len(data)
    h ^= h >> 16
    h = h * 0x85EBCA6B & MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & MASK
    return h ^ (h >> 16)


# Published test values of the function itself, among them those of the SMHasher and Wikipedia pages.
PUBLISHED = [
    (b"", 0, 0x00000000), (b"", 1, 0x514E28B7), (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50), (b"!Ce\x87", 0, 0xF55B516B), (b"!Ce\x87", 0x5082EDEE, 0x2362F9DE),
    (b"!Ce", 0, 0x7E4A8634), (b"!C", 0, 0xA0F7B07A), (b"!", 0, 0x72661CF4),
    (b"\0\0\0\0", 0, 0x2362F9DE), (b"\0\0\0", 0, 0x85F0B427), (b"\0\0", 0, 0x30F4C306), (b"\0", 0, 0x514E28B7),
    (b"test", 0, 0xBA6BD213), (b"Hello, world!", 0, 0xC0363E43),
    (b"The quick brown fox jumps over the lazy dog", 0, 0x2E4FF723),
]
for data, seed, want in PUBLISHED:
    assert murmur3_x86_32(data, seed) == want, (data, seed)

SALTS = ["", "a", "ab", "abc", "abcd", "checkout", "k3JxQ0vWm7TzR1p", "0123456789abcdef0123456789abcdef"]
UNITS = ["", "u", "42", "ada", "user", "user-1", "ada@example.com", "6f1c2d1e-9f0a-4d5b-8c3e-2b7a1f0e9d8c",
         "Zoë", "用户", "🦊", "a\u0000b", "x" * 64, "true", "1e3"]

print(json.dumps({
    "about": "bucket = (uint64(murmur3_x86_32(salt + \"\\x00\" + unit, seed 0)) * 100000) >> 32, over UTF-8 bytes; "
             "an empty unit is never bucketed (the rollout is skipped), its hash is here for implementers",
    "vectors": [
        {"salt": s, "unit": u, "hash": h, "bucket": (h * 100000) >> 32}
        for s in SALTS for u in UNITS
        for h in [murmur3_x86_32((s + "\0" + u).encode())]
    ],
}, indent=1, ensure_ascii=True))
