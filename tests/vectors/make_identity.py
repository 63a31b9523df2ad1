"""Writes identity.json from the reference. Run it only when an encoding gets a new version:

python tests/vectors/make_identity.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import identity_reference as reference

Fields = dict[str, reference.Value]

PLAIN: Fields = {
    "tenant": "default",
    "model": "meta-llama/Llama-3.1-8B",
    "weights": "sha256:6f1ed002ab5595859014ebf0951522d9",
    "load": "auto",
    "quantisation": "none",
    "kv_dtype": "bf16",
    "kv_scales": "none",
    "layers": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "layout": "NHD/KV",
    "engine": "vllm/0.11.0",
    "attention_backend": "FLASH_ATTN",
    "isa": "sm_90",
    "block_tokens": 16,
    "kv_options": [],
    "parallel": "tp=1,pp=1",
    "connector": "vllm-tier/1",
    "parts": 1,
    "run_blocks": 16,
}
RICH: Fields = {
    **PLAIN,
    "tenant": "team-a.prod_1",
    "model": "größe/模型",
    "weights": "sha256:" + "ab" * 32,
    "load": False,
    "layers": [24, 8],
    "kv_heads": [8, 1],
    "head_dim": 0,
    "kv_scales": bytes(range(8)),
    "kv_options": [["rope", [True, -1, 2**63 - 1]], ["window", 4096], "", b"", []],
    "block_tokens": 3,
    "parallel": [["pp", 2], ["tp", 8]],
    "parts": 64,
    "run_blocks": 1048576,
}
SECRET = bytes(range(32))


def typed(value: reference.Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"list": [typed(item) for item in value]}


def namespace_vector(name: str, fields: Fields, secret: bytes) -> dict[str, Any]:
    return {
        "name": name,
        "fields": {key: typed(value) for key, value in sorted(fields.items())},
        "encoding": reference.encode_namespace(fields).hex(),
        "fingerprint": reference.fingerprint(fields).hex(),
        "secret": secret.hex(),
        "key_check": reference.key_check(fields, secret).hex(),
    }


def chain_vector(
    name: str, fields: Fields, secret: bytes, tokens: list[int], facts: Fields, **more: Any
) -> dict[str, Any]:
    first_token, previous = more.get("first_token", 0), more.get("previous")
    size = fields["block_tokens"]
    assert isinstance(size, int)
    extras = reference.block_extras(facts, first_token, size, len(tokens) // size)
    key = reference.chain_key(fields, secret)
    return {
        "name": name,
        "namespace": "plain" if fields is PLAIN else "rich",
        "tokens": tokens,
        "previous": previous.hex() if previous else None,
        "first_token": first_token,
        "facts": {key: typed(value) for key, value in facts.items()},
        "extras": [extra.hex() for extra in extras],
        "keys": [k.hex() for k in reference.chain(key, tokens, size, previous, extras)],
    }


def rejected() -> list[dict[str, str]]:
    good = reference.encode_namespace(PLAIN)
    head, fields = good[:7], good[7:]
    first = fields[: fields.index(b"\x0cblock_tokens")]
    as_bytes = reference.encode_namespace({**PLAIN, "model": b"m"})
    cases = {
        "empty": b"",
        "magic of extras": b"KWEX" + good[4:],
        "version 2": good[:4] + b"\x02" + good[5:],
        "one field fewer counted": good[:5] + b"\x13\x00" + fields,
        "one field more counted": good[:5] + b"\x15\x00" + fields,
        "last byte gone": good[:-1],
        "a byte left over": good + b"\0",
        "two fields swapped": head + fields[len(first) :] + first,
        "a field twice": good[:5] + b"\x15\x00" + first + fields,
        "upper case in a name": good.replace(b"\x05model", b"\x05Model"),
        "a bool of 2": reference.encode_namespace({**PLAIN, "load": True}).replace(
            b"\x04load\x01\x01", b"\x04load\x01\x02"
        ),
        "text that is no UTF-8": good.replace(b"auto", b"aut\xff"),
        "an unknown type": good.replace(b"\x04load\x03", b"\x04load\x06"),
        "a text of 4 GiB": good.replace(b"\x04load\x03\x04\0\0\0", b"\x04load\x03\xff\xff\xff\xff"),
        "a list of 4 Gi values": good.replace(
            b"\nkv_options\x05\0\0\0\0", b"\nkv_options\x05\xff\xff\xff\xff"
        ),
        "lists nine deep": reference.encode_namespace({**PLAIN, "kv_options": [[[[[[[[[]]]]]]]]]}),
        "model as bytes": as_bytes,
        "no parts": reference.encode_namespace({**PLAIN, "parts": 0}),
        "65 parts": reference.encode_namespace({**PLAIN, "parts": 65}),
        "tenant with a space": reference.encode_namespace({**PLAIN, "tenant": "a b"}),
        "longer than 16 KiB": reference.encode_namespace({**PLAIN, "model": "m" * 16384}),
    }
    assert all(case != good for case in cases.values())
    return [{"name": name, "encoding": case.hex()} for name, case in cases.items()]


def main() -> None:
    prompt = [(i * 2654435761) % 128256 for i in range(16 * 5 + 7)]
    edges = [0, 1, 2**31, 2**32 - 1, 7, 7, 7]
    picture: Fields = {"multimodal": [[b"\x01" * 32, 20, 40], [b"\x02" * 16, 0, 4]]}
    everything: Fields = {"lora": b"\x03" * 32, "cache_salt": b"salt", **picture}
    previous = bytes(range(16))
    default = reference.DEFAULT_SECRET
    plain_key = reference.chain_key(PLAIN, default)
    salted = reference.block_extras({"cache_salt": b"s"}, 0, 16, 1)[0]
    hashes = [(b"\x09" * 8, 0, b""), (b"\x09" * 32, 3, b""), (b"", 2**32 - 1, salted)]
    document = {
        "version": 1,
        "default_secret": default.hex(),
        "namespaces": [
            namespace_vector("plain", PLAIN, default),
            namespace_vector("rich", RICH, SECRET),
        ],
        "rejected": rejected(),
        "chains": [
            chain_vector("a prompt with a rest", PLAIN, default, prompt, {}),
            chain_vector("shorter than a block", PLAIN, default, prompt[:15], {}),
            chain_vector("goes on", PLAIN, default, prompt, {}, previous=previous),
            chain_vector("after sixteen zeros", PLAIN, default, prompt, {}, previous=bytes(16)),
            chain_vector("largest tokens, odd blocks", RICH, SECRET, edges, {}),
            chain_vector("an empty salt", PLAIN, default, prompt, {"cache_salt": b""}),
            chain_vector("lora", PLAIN, default, prompt, {"lora": b"\x03" * 32}),
            chain_vector("pictures", PLAIN, default, prompt, picture),
            chain_vector("everything", PLAIN, default, prompt, everything),
            chain_vector(
                "everything, from the middle",
                PLAIN,
                default,
                prompt[16:],
                everything,
                first_token=16,
                previous=previous,
            ),
        ],
        "engine_hashes": [
            {
                "namespace": "plain",
                "hash": digest.hex(),
                "group": group,
                "extras": extra.hex(),
                "key": reference.engine_hash_key(plain_key, digest, group, extra).hex(),
            }
            for digest, group, extra in hashes
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=True)
    Path(__file__).with_name("identity.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
