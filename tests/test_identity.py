"""Namespaces and keys through the bindings, against the vectors and the independent reference."""

from __future__ import annotations

import array
import json
import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import identity_reference as reference
import numpy as np
import pytest
from keepwarm import _core
from keepwarm.errors import ArgumentError, IdentityError
from keepwarm.identity import Extras, MultimodalItem, Namespace
from nodes import FIELDS, make

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "identity.json").read_text()
)


def untyped(typed: dict[str, Any]) -> Any:
    ((kind, value),) = typed.items()
    if kind == "bytes":
        return bytes.fromhex(value)
    return [untyped(item) for item in value] if kind == "list" else value


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(bytes(range(32)).hex() + "\n")
    path.chmod(0o600)
    return path


def vector_namespace(name: str, secret_file: Path) -> tuple[Namespace, dict[str, Any]]:
    vector = next(v for v in VECTORS["namespaces"] if v["name"] == name)
    fields = {key: untyped(value) for key, value in vector["fields"].items()}
    secret = None if fields["tenant"] == "default" else secret_file
    return Namespace(secret=secret, **fields), vector


def vector_extras(vector: dict[str, Any]) -> Extras:
    facts = {name: untyped(value) for name, value in vector["facts"].items()}
    items = [MultimodalItem(*item) for item in facts.pop("multimodal", [])]
    return Extras(**facts, multimodal=items)


@pytest.mark.parametrize("name", [v["name"] for v in VECTORS["namespaces"]])
def test_namespaces_are_as_published(name: str, secret_file: Path) -> None:
    namespace, vector = vector_namespace(name, secret_file)
    assert namespace.encoding.hex() == vector["encoding"]
    assert namespace.fingerprint.hex() == vector["fingerprint"]
    assert namespace.key_check.hex() == vector["key_check"]


@pytest.mark.parametrize("vector", VECTORS["chains"], ids=lambda v: v["name"])
def test_keys_are_as_published(vector: dict[str, Any], secret_file: Path) -> None:
    namespace, _ = vector_namespace(vector["namespace"], secret_file)
    previous = bytes.fromhex(vector["previous"]) if vector["previous"] else None
    keys = namespace.block_keys(
        vector["tokens"], previous, vector_extras(vector), first_token=vector["first_token"]
    )
    assert keys.hex() == "".join(vector["keys"])


def test_vectors_are_what_the_reference_makes() -> None:
    for vector in VECTORS["namespaces"]:
        fields = {name: untyped(value) for name, value in vector["fields"].items()}
        assert reference.encode_namespace(fields).hex() == vector["encoding"]
        assert reference.fingerprint(fields).hex() == vector["fingerprint"]
    assert reference.DEFAULT_SECRET.hex() == VECTORS["default_secret"]


def test_engine_hashes_are_as_published(secret_file: Path) -> None:
    for vector in VECTORS["engine_hashes"]:
        if not vector["hash"]:
            continue  # the bindings refuse an empty hash
        namespace, _ = vector_namespace(vector["namespace"], secret_file)
        made = namespace.engine_keys([bytes.fromhex(vector["hash"])], vector["group"])
        assert made.hex() == vector["key"]


def test_random_prompts_agree_with_the_reference() -> None:
    seed = int(os.environ.get("KEEPWARM_TEST_SEED", random.randrange(1 << 32)))
    print(f"KEEPWARM_TEST_SEED={seed}")
    draw = random.Random(seed)
    for _ in range(50):
        size = draw.choice([1, 3, 16, 64])
        fields: dict[str, Any] = {**FIELDS, "block_tokens": size}
        tokens = [draw.randrange(1 << 32) for _ in range(draw.randrange(size * 6))]
        first_token = draw.choice([0, size, 7 * size])
        facts: dict[str, Any] = {}
        if draw.random() < 0.5:
            facts["cache_salt"] = draw.randbytes(draw.randrange(5))
        if draw.random() < 0.5:
            facts["lora"] = draw.randbytes(32)
        if draw.random() < 0.5:
            facts["multimodal"] = [
                [draw.randbytes(8), draw.randrange(size * 14), draw.randrange(1, 3 * size)]
                for _ in range(draw.randrange(1, 4))
            ]
        previous = draw.choice([None, draw.randbytes(16)])
        extras = reference.block_extras(facts, first_token, size, len(tokens) // size)
        key = reference.chain_key(fields, reference.DEFAULT_SECRET)
        wanted = b"".join(reference.chain(key, tokens, size, previous, extras))
        items = [MultimodalItem(*item) for item in facts.pop("multimodal", [])]
        made = make(block_tokens=size).block_keys(
            tokens, previous, Extras(**facts, multimodal=items), first_token=first_token
        )
        assert made == wanted


def test_token_ids_come_in_many_shapes() -> None:
    namespace, tokens = make(), list(range(33))
    wanted = namespace.block_keys(tokens)
    assert len(wanted) == 2 * 16
    for dtype in ("uint32", "int32", "int64", "uint64"):
        assert namespace.block_keys(np.array(tokens, dtype=dtype)) == wanted
    for code in "iIlLqQ":
        assert namespace.block_keys(array.array(code, tokens)) == wanted
    assert namespace.block_keys(tuple(tokens)) == wanted
    assert namespace.block_keys(range(33)) == wanted
    assert namespace.block_keys(np.array(tokens, dtype="uint32").data) == wanted
    assert namespace.block_keys([]) == b""
    assert namespace.block_keys(np.array([], dtype="uint32")) == b""


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint64", "int64"])
def test_tokens_are_read_once_whoever_writes_them_meanwhile(dtype: str) -> None:
    """Longer than what is copied at once. The writer has no GIL, and both its values are tokens."""
    namespace, size = make(), 5000 // 16 * 16
    tokens, ended = np.arange(size, dtype=dtype), threading.Event()
    others = np.arange(size, 2 * size, dtype=dtype)
    wanted = [namespace.block_keys(values.tolist()) for values in (tokens, others)]
    assert namespace.block_keys(tokens) == wanted[0]
    fd = os.memfd_create("tokens")
    os.write(fd, tokens.tobytes() + others.tobytes())
    memory = tokens.data.cast("B")

    def write() -> None:
        while not ended.is_set():
            for at in (len(memory), 0, len(memory)):
                os.preadv(fd, [memory], at)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            assert len(namespace.block_keys(tokens)) == size
    finally:
        ended.set()
        writer.join()
        os.close(fd)
    assert namespace.block_keys(tokens) == wanted[1]


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        ([1, 2, -1], r"token_ids\[2\] is -1.*0 to 4294967295"),
        ([1 << 32], r"token_ids\[0\] is 4294967296"),
        ([1, 2.5], r"token_ids\[1\] is 2.5"),
        (["a"], r"token_ids\[0\] is a"),
        ("text", r"token_ids is str: pass a sequence of int"),
        (7, r"token_ids is int: pass a sequence of int"),
        (None, r"token_ids is NoneType"),
        (np.array([0, -5]), r"token_ids\[1\] is -5"),
        (np.array([1 << 32]), r"token_ids\[0\] is 4294967296"),
        (np.array([1.0]), r"format d: pass uint32, int32, int64"),
        (np.array([1], dtype=">i8"), r"format >q|format >l"),
        (b"1234", r"format B: pass uint32"),
        (np.zeros((2, 2), dtype="uint32"), r"one dimension: flatten it"),
        (np.zeros(8, dtype="uint32")[::2], r"contiguous"),
    ],
)
def test_bad_token_ids_are_named(tokens: Any, names: str) -> None:
    with pytest.raises(ArgumentError, match=names):
        make().block_keys(tokens)


def test_other_bad_arguments_of_keys_are_named() -> None:
    namespace = make()
    with pytest.raises(ArgumentError, match="previous has 15 bytes"):
        namespace.block_keys([1], bytes(15))
    with pytest.raises(ArgumentError, match="previous holds 2 keys"):
        namespace.block_keys([1], bytes(32))
    with pytest.raises(ArgumentError, match="first_token is -1"):
        namespace.block_keys([1], first_token=-1)
    with pytest.raises(ArgumentError, match="more than 8388608 for one call"):
        namespace.block_keys(np.zeros(8388609, dtype="uint32"))
    with pytest.raises(ArgumentError, match=r"hashes\[1\] has 0 bytes"):
        namespace.engine_keys([b"a", b""])
    with pytest.raises(ArgumentError, match="group is -1"):
        namespace.engine_keys([b"a"], -1)
    with pytest.raises(ArgumentError, match="multimodal items"):
        namespace.engine_keys([b"a"], extras=Extras(multimodal=[MultimodalItem(b"h", 0, 1)]))
    with pytest.raises(IdentityError, match="lora"):
        namespace.block_keys([1] * 16, extras=Extras(lora=b""))
    with pytest.raises(IdentityError, match=r"multimodal\[0\] has 0 tokens"):
        namespace.block_keys([1] * 16, extras=Extras(multimodal=[(b"h", 0, 0)]))


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_required(field: str) -> None:
    less: dict[str, Any] = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(IdentityError, match=rf"field {field} is missing: give ") as caught:
        Namespace(**less)
    assert caught.value.field == field
    with pytest.raises(IdentityError, match=rf"field {field} is None: give ") as caught:
        make(**{field: None})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"parts": 65}, "parts is 65"),
        ({"parts": True}, "parts is true"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"model": ""}, 'model is ""'),
        ({"layers": 1.5}, "layers is a float"),
        ({"layers": 1 << 63}, "layers is a int that cannot be encoded"),
        ({"load": [[[[[[[[[1]]]]]]]]]}, "load is a list more than 8 lists deep"),
        ({"kv_options": {1: 2}}, "name that is no str"),
        ({"kv_dtypes": "bf16"}, "did you mean kv_dtype"),
        ({"tenant": "a/b"}, 'tenant is "a/b"'),
        ({"kv_options": "x" * 20000}, "larger than 16384"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(IdentityError, match=names):
        make(**changes)


def test_mappings_are_lists_of_pairs_in_order_of_name() -> None:
    one = make(kv_options={"b": {"y": 1, "x": [2]}, "a": True})
    two = make(kv_options=[["a", True], ["b", [["x", [2]], ["y", 1]]]])
    assert one == two
    assert hash(one) == hash(two)
    assert one != make()
    assert one != "namespace"


def test_differences_name_field_and_values() -> None:
    here, there = make(kv_dtype="fp8", layers=[1, 2]), make()
    assert here.differences(there) == [
        'kv_dtype: "fp8" here, "bf16" there',
        "layers: [1, 2] here, 2 there",
    ]


def test_secrets_separate_tenants(secret_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    one, two = make(secret_file, tenant="t"), make(other, tenant="t")
    assert one.fingerprint == two.fingerprint
    assert one.key_check != two.key_check
    assert one != two
    assert one.block_keys(range(16)) != two.block_keys(range(16))


def test_bad_secrets_are_refused(secret_file: Path, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="secret of tenant t is missing: give secret="):
        make(tenant="t")
    with pytest.raises(IdentityError, match="tenant default has a public one"):
        make(secret_file)
    with pytest.raises(IdentityError, match=r"/absent.* cannot be read"):
        make(tmp_path / "absent", tenant="t")
    secret_file.chmod(0o640)
    with pytest.raises(IdentityError, match="0640 lets others at it: run chmod 600"):
        make(secret_file, tenant="t")


def test_a_namespace_is_shown_and_not_pickled() -> None:
    namespace = make()
    assert namespace.fingerprint.hex()[:12] in repr(namespace)
    with pytest.raises(TypeError, match="holds a secret"):
        pickle.dumps(namespace)
    assert (namespace.tenant, namespace.parts) == ("default", 1)
    assert (namespace.block_tokens, namespace.run_blocks) == (16, 4)
    assert set(namespace.fields) == {name for name, _ in _core.namespace_fields()}


def any_names(**changes: Any) -> Any:
    return make(**changes)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a secret": (lambda: any_names(secret=5), "secret is a int: give the path"),
    "text hashes": (lambda: any_names().engine_keys(["a"]), r"hashes\[0\] is a str"),
    "no hashes": (lambda: any_names().engine_keys(7), "hashes is int"),
    "one hash": (lambda: any_names().engine_keys(b"ab"), "hashes is bytes"),
    "a first token": (lambda: any_names().block_keys([1], first_token="a"), "first_token is 'a'"),
    "a far token": (lambda: any_names().block_keys([1], first_token=2**70), "first_token is 1180"),
    "facts": (lambda: any_names().block_keys([1], extras={}), "extras is a dict"),
    "an adapter": (lambda: with_facts(lora="name"), "lora is a str: give bytes"),
    "a salt": (lambda: with_facts(cache_salt=7), "cache_salt is a int: give bytes"),
    "a short item": (lambda: with_facts(multimodal=[(b"a", 0)]), "multimodal has .*an item is"),
    "an item": (lambda: with_facts(multimodal=[7]), "multimodal has 7: an item is"),
    "a picture": (lambda: with_facts(multimodal=[("a", 0, 1)]), "multimodal has .*an item is"),
}


def with_facts(**facts: Any) -> bytes:
    return make().block_keys([1] * 16, extras=Extras(**facts))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_type_is_named(what: str) -> None:
    call, named = WRONG[what]
    with pytest.raises((ArgumentError, IdentityError), match=named):
        call()
