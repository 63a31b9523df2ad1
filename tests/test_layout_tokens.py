"""Tokens and their places: exact ones from a local file, and the approximation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.rendering import Rendered, Segment
from keepwarm.layout.tokens import ApproximateTokens, LocalTokens, Tokens, tokenise

ALPHABET = 'abc XY 019 .,{}"\n\t<|é語😀\u0301'


def made_tokenizer(folder: Path) -> Path:
    """A small word-level tokenizer with one special token."""
    vocab = {"[UNK]": 0, "hello": 1, "world": 2, "<|end|>": 3, "!": 4}
    special = {"id": 3, "content": "<|end|>", "special": True, "single_word": False}
    special |= {"lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    whole: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [special],
        "pre_tokenizer": {"type": "Whitespace"},
    }
    file = folder / "tokenizer.json"
    whole |= {"truncation": None, "padding": None, "normalizer": None, "post_processor": None}
    file.write_text(json.dumps(whole | {"decoder": None, "model": model}))
    return file


def pieces(tokens: Tokens, text: str) -> list[str]:
    _, begins = tokens.encode(text)
    ends = [*begins[1:], len(text)]
    return [text[a:b] for a, b in zip(begins, ends, strict=True)]


def test_the_approximation_cuts_as_it_says() -> None:
    cut = pieces(
        ApproximateTokens(), 'Hello there, extraordinary 2024!\n\n  {"a": 1.5}語学<|end|>x'
    )
    assert "|".join(cut) == (
        'Hello| there|,| extraord|inary| 202|4|!|\n\n| | {"|a|":| 1|.|5|}|語|学|<|end|>|x'
    )


@pytest.mark.parametrize("seed", range(20))
def test_equal_prefixes_give_equal_tokens(seed: int) -> None:
    rng = random.Random(seed)
    tokens = ApproximateTokens()
    shared = "".join(rng.choices(ALPHABET, k=200))
    ids = [tokens.encode(shared + "".join(rng.choices(ALPHABET, k=50))) for _ in range(2)]
    begins = [places for _, places in ids]
    # Only what touches the end of the shared text may depend on what follows it.
    whole = int(np.searchsorted(begins[0], len(shared) - 52))
    assert whole > 20
    assert (ids[0][0][:whole] == ids[1][0][:whole]).all()
    assert (begins[0][:whole] == begins[1][:whole]).all()


@pytest.mark.parametrize("text", ["long", "長"])
def test_the_approximations_cache_is_bounded_in_bytes(text: str) -> None:
    tokens = ApproximateTokens()
    for number in range(20):
        tokens.encode(f"{number} " + text * 250_000)
    arrays = [each for known in tokens._known.values() for each in known]
    assert sum(each.nbytes for each in arrays) <= 64 << 20
    assert len(tokens._known) > 5
    assert tokens.encode("8" + text) is tokens.encode("8" + text)


def test_a_prompts_tokens_are_its_segments_tokens() -> None:
    rendered = Rendered(
        [Segment("hello"), Segment("<|media 1|>", "/a", media_tokens=3), Segment("!")]
    )
    ids, offsets = tokenise(rendered, ApproximateTokens())
    assert len(ids) == 5
    assert list(offsets) == [0, 5, 5, 5, 16]
    assert ids[2] == ids[1] + 1


def test_a_local_tokenizer_counts_as_the_model_does(tmp_path: Path) -> None:
    tokens = LocalTokens(made_tokenizer(tmp_path).parent)
    segments = [Segment("hel"), Segment("lo wor"), Segment("ld<|end|>", "/a")]
    ids, offsets = tokenise(Rendered(segments), tokens)
    assert list(ids) == [1, 2, 3]
    assert list(offsets) == [0, 6, 11]
    media = [Segment("hello"), Segment("<|media 1|>", "/a", media_tokens=2), Segment("world")]
    ids, offsets = tokenise(Rendered(media), tokens)
    assert [int(each) for each in (ids[0], ids[3])] == [1, 2]
    assert list(offsets) == [0, 5, 5, 16]


def test_a_tokenizer_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no tokenizer at"):
        LocalTokens(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"tokenizer\.json is no tokenizer"):
        LocalTokens(tmp_path)
