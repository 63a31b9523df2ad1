"""The safe repairs: what they change, and that they change nothing else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from bodies import SEEDS, Maker, cases
from keepwarm.errors import ArgumentError
from keepwarm.layout import canonical
from keepwarm.layout.findings import Breaker
from keepwarm.layout.fix import MARKERS, PSEUDO_HEADERS, Rules, Target, fix, fix_bytes
from keepwarm.layout.requests import Family
from keepwarm.testing import conversations

EVERYTHING = Rules(property_names=True, tool_results=True, tool_spaces=True)


def rules_of(seed: int) -> Rules:
    target = list(Target)[seed % 3]
    extra = seed % 2 == 1
    return Rules(target=target, property_names=extra, tool_results=extra, tool_spaces=extra)


def without_markers(value: Any) -> Any:
    """A model of what an engine's target may lose: markers, wherever a block can carry one."""
    if isinstance(value, dict):
        return {k: without_markers(v) for k, v in value.items() if k not in MARKERS}
    return [without_markers(each) for each in value] if isinstance(value, list) else value


def spoken(body: Any, family: Family) -> list[Any]:
    """All that users, assistants and tools said, apart from markers."""
    messages = body.get("input" if family is Family.OPENAI_RESPONSES else "messages")
    if not isinstance(messages, list):
        return [messages]
    return [
        without_markers(each)
        for each in messages
        if not isinstance(each, dict) or each.get("role") not in ("system", "developer")
    ]


def squeezed(text: str) -> str:
    """Text without what cleaning may change: space at the ends of lines, line ends, forms."""
    import unicodedata

    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    kept = "\n".join(line.rstrip(" \t") for line in lines).rstrip("\n")
    return kept if kept.strip() else text


def headless(text: str) -> str:
    while text.startswith(PSEUDO_HEADERS):
        text = text.partition("\n")[2]
    return text


def system_texts(body: Any, family: Family) -> list[str]:
    contents = [body.get("system"), body.get("instructions")]
    messages = body.get("input" if family is Family.OPENAI_RESPONSES else "messages")
    for each in messages if isinstance(messages, list) else []:
        if isinstance(each, dict) and each.get("role") in ("system", "developer"):
            contents.append(each.get("content"))
    texts: list[str] = []
    for content in contents:
        blocks = [{"text": content}] if isinstance(content, str) else content or []
        texts += [
            b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str)
        ]
    return texts


def tool_multiset(body: Any, has_markers: bool) -> list[str]:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return [json.dumps(tools)]
    kept = tools if has_markers else [without_marks_of_tool(tool) for tool in tools]
    return sorted(json.dumps(tool, sort_keys=True) for tool in kept)


def without_marks_of_tool(tool: Any) -> Any:
    """Markers on the tool itself and on its function; a property of that name is no marker."""
    if not isinstance(tool, dict):
        return tool
    bare = {k: v for k, v in tool.items() if k not in MARKERS}
    if isinstance(bare.get("function"), dict):
        bare["function"] = {k: v for k, v in bare["function"].items() if k not in MARKERS}
    return bare


@pytest.mark.parametrize("family", list(Family))
def test_fixing_twice_is_fixing_once(family: Family) -> None:
    changed = 0
    for seed in SEEDS:
        maker, rules = Maker(seed), rules_of(seed)
        body = maker.body(family)
        once = fix(body, family, rules)
        again = fix(once.body, family, rules)
        assert again.body is once.body, seed
        assert not again.changes, seed
        data = maker.text(body)
        once_bytes = fix_bytes(data, family, rules)
        again_bytes = fix_bytes(once_bytes.body, family, rules)
        assert again_bytes.body is once_bytes.body, seed
        assert not again_bytes.changes, seed
        changed += bool(once.changes)
    assert changed > len(SEEDS) / 4


def test_both_forms_of_a_body_are_fixed_alike() -> None:
    for seed, family, maker in cases():
        body = maker.body(family)
        rules = Rules(target=list(Target)[seed % 3], tool_results=seed % 2 == 1)
        one = fix(body, family, rules)
        other = fix_bytes(maker.text(body), family, rules)
        assert json.dumps(json.loads(other.body)) == json.dumps(one.body), (seed, family)
        assert other.changes == one.changes, (seed, family)


def test_what_was_said_stays_to_the_letter() -> None:
    for seed, family, maker in cases():
        body = maker.body(family)
        rules = Rules(target=list(Target)[seed % 3])
        fixed = json.loads(fix_bytes(maker.text(body), family, rules).body)
        assert json.dumps(spoken(fixed, family)) == json.dumps(spoken(body, family)), seed


def test_the_model_sees_the_same_but_for_order_and_white_space() -> None:
    for seed, family, maker in cases():
        body = maker.body(family)
        target = list(Target)[seed % 3]
        fixed = fix(body, family, Rules(target=target)).body
        keeps = target is not Target.ENGINE
        if keeps:  # a marker stays at its position while tools move below it
            assert sorted(map(json.dumps, _marks(body))) == sorted(map(json.dumps, _marks(fixed)))
        assert tool_multiset(body, False) == tool_multiset(fixed, False), seed
        strip = headless if target is not Target.ANTHROPIC else str
        before = [squeezed(strip(text) or text) for text in system_texts(body, family)]
        after = [squeezed(strip(text) or text) for text in system_texts(fixed, family)]
        # Blocks of a header alone may go; one that is all there is stays.
        assert [text for text in before if not text.startswith(PSEUDO_HEADERS)] == [
            text for text in after if not text.startswith(PSEUDO_HEADERS)
        ], (seed, family)
        others = {"tools", "messages", "input", "system", "instructions", *MARKERS}
        for key in body.keys() - others:
            assert json.dumps(fixed[key]) == json.dumps(body[key]), (seed, key)
        assert fixed.keys() - set(MARKERS) == body.keys() - set(MARKERS)


def _marks(body: Any) -> list[Any]:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    return [tool.get(marker) for tool in tools if isinstance(tool, dict) for marker in MARKERS]


def test_engines_get_no_markers_and_properties_of_that_name_stay() -> None:
    for seed, family, maker in cases():
        body = maker.body(family)
        fixed = fix(body, family, Rules(target=Target.ENGINE)).body
        assert not fixed.keys() & set(MARKERS)
        text = json.dumps({**fixed, "tools": None, "x_unknown": None})
        assert not any(f'"{marker}"' in text for marker in MARKERS), seed
        assert tool_multiset(fixed, has_markers=True) == tool_multiset(body, has_markers=False)


def test_anthropic_keeps_its_markers_headers_and_positions() -> None:
    marker = {"type": "ephemeral"}
    header = "x-anthropic-billing-header: cc_version=2; cch=00000;"
    body = {
        "system": [{"type": "text", "text": header}, {"type": "text", "text": "You help."}],
        "tools": [
            {"name": "write", "input_schema": {}},
            {"type": "bash_20250124", "name": "bash"},
            {"name": "read", "input_schema": {}, "cache_control": marker},
        ],
        "messages": [{"role": "user", "content": "hi"}],
    }
    fixed = fix(body, Family.ANTHROPIC, Rules(target=Target.ANTHROPIC))
    assert [tool["name"] for tool in fixed.body["tools"]] == ["bash", "read", "write"]
    assert [tool.get("cache_control") for tool in fixed.body["tools"]] == [None, None, marker]
    assert fixed.body["system"] == body["system"]
    assert fixed.counts() == {"tool-order": 1}
    other = fix(body, Family.ANTHROPIC, Rules(target=Target.OPENAI))
    assert other.body["system"] == [{"type": "text", "text": "You help."}]
    assert other.counts() == {"tool-order": 1, "pseudo-header": 1}


def test_numbers_keep_their_digits_and_untouched_bytes_stay() -> None:
    data = (
        b'{ "z" : 1e3, "tools":[{"function":{"parameters":{"maximum":1.0,"minimum":-0.0,'
        b'"multipleOf":1E-400,"default":123456789012345678901234567890.10},"name":"b"},'
        b'"type":"function"},{"type":"function","function":{"name":"a"}}],\n"top_p":1.000 }'
    )
    fixed = fix_bytes(data, Family.OPENAI_CHAT)
    assert fixed.body == (
        b'{ "z" : 1e3, "tools":[{"type":"function","function":{"name":"a"}},'
        b'{"type":"function","function":{"name":"b","parameters":{'
        b'"default":123456789012345678901234567890.10,"maximum":1.0,"minimum":-0.0,'
        b'"multipleOf":1E-400}}}],\n"top_p":1.000 }'
    )
    assert [(each.breaker, each.pointer) for each in fixed.changes] == [
        (Breaker.KEY_ORDER, "/tools/0"),
        (Breaker.TOOL_ORDER, "/tools"),
    ]


def test_nothing_to_do_gives_the_same_object() -> None:
    data = b'{"messages": [{"role": "user", "content": "a  \\r\\n"}],  "n": 1.0}'
    assert fix_bytes(data, Family.OPENAI_CHAT).body is data
    body = json.loads(data)
    assert fix(body, Family.OPENAI_CHAT).body is body


def test_repeated_keys_are_left_alone() -> None:
    for data in (
        b'{"tools":[], "tools":[{"type":"function","name":"b"}]}',
        b'{"messages":[{"role":"system","role":"user","content":"a \\n"}]}',
        b'{"tools":[{"name":"b","name":"c"},{"name":"a"}]}',
    ):
        assert fix_bytes(data, Family.OPENAI_CHAT).body is data
    data = b'{"tools":[{"name":"b","parameters":{"x":1,"x":2.0}},{"name":"a"}]}'
    moved = fix_bytes(data, Family.OPENAI_CHAT).body
    assert moved == b'{"tools":[{"name":"a"},{"name":"b","parameters":{"x":1,"x":2.0}}]}'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON at character 0"),
        (b"[1]", "no object"),
        (b'"text"', "no object"),
        (b'{"a": NaN}', "no JSON"),
        (b'{"a": 1', "no JSON"),
        (b'{"a": "\xff"}', "no UTF-8 from byte 7"),
        (b"\xff\xfe{\x00}\x00", "no UTF-8 from byte 0"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"tools":' + b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000 + b"}", "nested"),
        (b'{"tools":[' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"]}", "deeper than 100 levels"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as refused:
        fix_bytes(data, Family.OPENAI_CHAT)
    assert "forward" in str(refused.value)


@pytest.mark.parametrize("body", [None, [], "text", 3, b"{}"])
def test_a_body_that_is_no_mapping_is_refused(body: Any) -> None:
    with pytest.raises(ArgumentError, match="forward it as it is"):
        fix(body, Family.OPENAI_CHAT)


def test_deep_values_in_unknown_fields_do_not_matter_to_a_decoded_body() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    body = {"x": deep, "tools": [{"name": "b"}, {"name": "a"}]}
    fixed = fix(body, Family.OPENAI_CHAT).body
    assert [tool["name"] for tool in fixed["tools"]] == ["a", "b"]
    assert fixed["x"] is deep
    while isinstance(deep, list):  # taken apart by hand: freeing it at once would recurse
        deep = deep[0]


BIG = 10 << 20


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("x" * BIG, id="one long text"),
        pytest.param('\\"' * (BIG // 4), id="escapes"),
        pytest.param(" " * BIG, id="spaces without a line end"),
        pytest.param("a \t" * (BIG // 6) + "\r\n" * (BIG // 4), id="spaces and line ends"),
        pytest.param("a" + "\u0316\u0301" * (BIG // 12), id="combining marks"),
        pytest.param("e\u0301 " * (BIG // 6), id="accents"),
        pytest.param((PSEUDO_HEADERS[0] + "\n") * (BIG // 28), id="headers"),
    ],
)
def test_ten_megabytes_take_bounded_time(said: str) -> None:
    """The bound is far above what it takes here, and far below what quadratic time would."""
    body = {
        "tools": [{"name": "b"}, {"name": "a"}],
        "messages": [{"role": "system", "content": said}, {"role": "tool", "content": said}],
        "x": [[1, 2.5]] * 100_000,
    }
    data = json.dumps(body).encode()
    started = time.process_time()
    fixed = fix_bytes(data, Family.OPENAI_CHAT, EVERYTHING)
    assert time.process_time() - started < 20
    assert fixed.body != data


def test_text_is_cleaned_as_documented() -> None:
    clean = canonical.clean_text
    assert clean("a \t\r\nb\rc  ") == "a\nb\nc"
    assert clean("a \r\nb  ", is_last=False) == "a\nb  "
    assert clean("\r\n  in\u0301") == "\n  i\u0144"
    assert clean(" \r\n\t") == " \r\n\t"
    piled = "a" + "\u0301\u0316" * 40
    assert clean(piled + " \n.") == piled + "\n."


def test_embedded_json_changes_only_when_asked_for() -> None:
    text = '{ "b" : 1.0, "a" : [3, 1e2] }'
    body = {"messages": [{"role": "tool", "content": text}, {"role": "user", "content": text}]}
    assert fix(body, Family.OPENAI_CHAT).body is body
    fixed = fix(body, Family.OPENAI_CHAT, Rules(tool_results=True)).body
    assert fixed["messages"][0]["content"] == '{"a":[3,1e2],"b":1.0}'
    assert fixed["messages"][1]["content"] == text


def test_properties_keep_their_order_unless_asked_for() -> None:
    parameters = {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}}
    body = {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}
    assert fix(body, Family.OPENAI_CHAT).body is body
    fixed = fix(body, Family.OPENAI_CHAT, Rules(property_names=True)).body
    assert list(fixed["tools"][0]["function"]["parameters"]["properties"]) == ["a", "z"]


def test_spaces_between_tokens_of_tools_go_only_when_asked_for() -> None:
    data = b'{"tools": [{"name": "a", "description": "\\u00e9"}], "n": 1}'
    assert fix_bytes(data, Family.OPENAI_CHAT).body is data
    fixed = fix_bytes(data, Family.OPENAI_CHAT, Rules(tool_spaces=True))
    assert fixed.body == '{"tools": [{"name":"a","description":"é"}], "n": 1}'.encode()


@pytest.mark.parametrize("is_text", [False, True])
def test_a_body_is_repaired_where_it_lies_in_a_record(is_text: bool) -> None:
    body = {"tools": [{"name": "b"}, {"name": "a"}], "messages": [], "n": 1.50}
    record = {"t": 1.0, "req": {"inner": json.dumps(body) if is_text else body}, "z": "\u00e9 "}
    data = json.dumps(record).encode()
    fixed = fix_bytes(data, Family.OPENAI_CHAT, at=("req", "inner"))
    assert [(each.breaker, each.pointer) for each in fixed.changes] == [
        (Breaker.TOOL_ORDER, "/tools")
    ]
    got = json.loads(fixed.body)
    inner = json.loads(got["req"]["inner"]) if is_text else got["req"]["inner"]
    assert inner == {**body, "tools": [{"name": "a"}, {"name": "b"}]}
    assert fixed.body.startswith(b'{"t": 1.0, "req": {"inner": ')
    assert fixed.body.endswith(b', "z": "\\u00e9 "}')
    for elsewhere in ((), ("req",), ("none",), ("t",)):
        assert fix_bytes(data, Family.OPENAI_CHAT, at=elsewhere).body is data
    twice = json.dumps({"outer": data.decode()}).encode()
    again = fix_bytes(twice, Family.OPENAI_CHAT, at=("outer", "req", "inner"))
    assert json.loads(again.body)["outer"] == fixed.body.decode()
    with pytest.raises(ArgumentError, match="no JSON"):
        fix_bytes(data, Family.OPENAI_CHAT, at=("z", "inner"))


@pytest.mark.parametrize("target", list(Target))
def test_conversations_keep_every_word(target: Target) -> None:
    """Real ones where they are, else made ones: fixed in bytes, all that was said is the same."""
    given = conversations.public()[:60] or conversations.generated(10, 5)
    count = 0
    for each in given:
        request = list(conversations.requests_of(each))[-1]
        data = json.dumps(request.body).encode()
        fixed = fix_bytes(data, request.family, Rules(target=target))
        after = json.loads(fixed.body)
        assert spoken(after, request.family) == spoken(request.body, request.family)
        assert tool_multiset(after, True) == tool_multiset(request.body, True)
        before = [squeezed(text) for text in system_texts(request.body, request.family)]
        assert [squeezed(text) for text in system_texts(after, request.family)] == before
        assert fix_bytes(fixed.body, request.family, Rules(target=target)).body is fixed.body
        count += 1
    assert count >= 10


def rendered(body: Mapping[str, Any]) -> str:
    """A prompt as most templates lay it out: tools, then messages, each as it is given."""
    tools = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in body["tools"])
    return tools + "".join(f"<{m['role']}>{m['content']}\n" for m in body["messages"])


def common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("seed", range(20))
def test_planted_breakers_are_undone_and_the_prefix_is_whole_again(seed: int) -> None:
    draw = random.Random(seed)
    plain: dict[str, Any] = {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"Does {name}.",
                    "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
                },
            }
            for name in ("grep", "list", "read", "write")
        ],
        "messages": [
            {"role": "system", "content": "You help.\nBe caf\u00e9-like.\nEnd."},
            *(
                {"role": role, "content": f"{role} {n}"}
                for n in range(4)
                for role in ("user", "tool")
            ),
        ],
    }
    broken = json.loads(json.dumps(plain))
    while broken["tools"] == plain["tools"]:
        draw.shuffle(broken["tools"])
    for tool in broken["tools"]:
        members = list(tool["function"].items())
        draw.shuffle(members)
        tool["function"] = dict(members)
    system = "You help. \r\nBe cafe\u0301-like.\t\nEnd.\n"
    broken["messages"][0]["content"] = draw.choice(PSEUDO_HEADERS) + f" cch={seed};\n" + system
    broken["messages"].append({"role": "user", "content": "one more"})
    whole = len(rendered(plain))
    assert common(rendered(plain), rendered(broken)) < whole / 4
    one, other = (fix(body, Family.OPENAI_CHAT) for body in (plain, broken))
    assert one.body is plain
    assert common(rendered(one.body), rendered(other.body)) == whole
    assert other.counts().keys() >= {"tool-order", "whitespace", "pseudo-header"}
