"""Prompts from bodies: every stretch of a prompt leads back to its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.chat_template import ChatTemplate
from keepwarm.layout.rendering import Rendered, RenderSettings, render
from keepwarm.layout.requests import Family, LoggedRequest

TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}},
}
CHATML = (
    "{%- if tools %}{{ '<|tools|>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}"
    "</think>{% endif %}{{ message.content | trim }}"
    "{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(body: dict[str, Any], family: Family = Family.OPENAI_CHAT) -> LoggedRequest:
    return LoggedRequest("log.jsonl:1", family, body)


def value_at(body: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        body = body[int(key)] if isinstance(body, list) else body[key]
    return body


def leads_back(rendered: Rendered, body: dict[str, Any]) -> set[str]:
    """Asserts that each attributed stretch is in its field where it says; answers the fields."""
    for segment in rendered.segments:
        if segment.pointer and not segment.media_tokens:
            value = value_at(body, segment.pointer)
            if isinstance(value, str):
                assert value[segment.offset :].startswith(segment.text), segment.pointer
            else:
                assert json.loads(segment.text) == value
    return {segment.pointer for segment in rendered.segments if segment.pointer}


OPENAI = {
    "model": "m",
    "tools": [TOOL],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "x"}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Let me look.",
            "tool_calls": [
                {"id": "1", "function": {"name": "find", "arguments": '{"what": "a  b"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "nothing"},
    ],
}
ANTHROPIC = {
    "model": "claude-x",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "find", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "find", "input": {"what": 1.0}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "content": "none"},
                {"type": "text", "text": "go on"},
            ],
        },
    ],
}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "output": "none"},
    ],
}


def test_openai_chat_leads_back_to_its_fields() -> None:
    pointers = leads_back(render(chat(OPENAI)), OPENAI)
    assert pointers == {
        "/tools/0",
        "/messages/0/content",
        "/messages/1/content/0/text",
        "/messages/1/content/1/text",
        "/messages/2/reasoning_content",
        "/messages/2/tool_calls/0/function/name",
        "/messages/2/tool_calls/0/function/arguments",
        "/messages/3/content",
    }


def test_anthropic_messages_and_responses_lead_back_to_their_fields() -> None:
    found = leads_back(render(chat(ANTHROPIC, Family.ANTHROPIC)), ANTHROPIC)
    assert "/system/0/text" in found
    assert "/messages/1/content/1/input" in found
    assert "/messages/2/content/0/content" in found
    assert not any("cache_control" in pointer for pointer in found)
    found = leads_back(render(chat(RESPONSES, Family.OPENAI_RESPONSES)), RESPONSES)
    assert {"/instructions", "/input/1/summary/0/text", "/input/3/output"} <= found


def test_a_completion_is_its_prompt_and_nothing_else() -> None:
    rendered = render(chat({"prompt": "Once upon"}, Family.OPENAI_COMPLETIONS))
    assert rendered.text == "Once upon"
    assert render(chat({"prompt": [1, 2]}, Family.OPENAI_COMPLETIONS)).text == "h i"


def test_tools_come_before_the_system_prompt_and_that_before_the_rest() -> None:
    late = {"messages": [*OPENAI["messages"][1:], OPENAI["messages"][0]], "tools": [TOOL]}
    order = [s.pointer for s in render(chat(late)).segments if s.pointer]
    assert order[0] == "/tools/0"
    assert order[1] == "/messages/3/content"


def test_a_body_of_another_shape_renders_to_what_is_there() -> None:
    odd = {
        "messages": [1, {"role": 5}, {"role": "user", "content": [None, 3, {"text": 4}]}],
        "tools": 3,
    }
    assert render(chat(odd)).text.endswith("<|assistant|>\n")


def test_cache_control_is_shown_only_to_models_that_do_not_know_it() -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    body = {"model": "qwen", "messages": [{"role": "user", "content": [part]}]}
    assert "/messages/0/content/0/cache_control" in leads_back(render(chat(body)), body)
    body["model"] = "claude-opus-5"
    assert "/messages/0/content/0/cache_control" not in leads_back(render(chat(body)), body)


def test_a_picture_is_named_by_its_content() -> None:
    def picture(url: str, detail: str) -> Rendered:
        part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        return render(chat({"messages": [{"role": "user", "content": [part]}]}))

    one, same = picture("data:a", "low"), picture("data:a", "low")
    assert one.text == same.text
    assert one.text != picture("data:b", "low").text != picture("data:b", "high").text
    assert [s.media_tokens for s in one.segments if s.media_tokens] == [85]


def test_a_template_that_trims_and_drops_is_attributed_exactly() -> None:
    template = ChatTemplate(CHATML, "made-up")
    body = json.loads(json.dumps(OPENAI))
    body["messages"][0]["content"] = "  Be brief.\n"
    rendered = render(chat(body), RenderSettings(template))
    found = leads_back(rendered, body)
    assert "/tools/0" in found
    assert "/messages/0/content" in found
    assert "/messages/2/reasoning_content" not in found
    assert rendered.text.startswith("<|tools|>")
    assert "".join(s.text for s in rendered.segments) == rendered.text


def test_a_template_that_reacts_to_the_marks_is_attributed_by_text() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content.startswith('Look') %}!{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, "made-up")
    body = {"messages": [{"role": "user", "content": "Look up"}, {"role": "user", "content": "b"}]}
    rendered = render(chat(body), RenderSettings(template))
    assert rendered.text == "[user]!Look up[user]b"
    assert leads_back(rendered, body) == {"/messages/0/content", "/messages/1/content"}


def test_a_template_gets_the_requests_day_or_the_pinned_one_and_says_so() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}", "made-up")
    settings = RenderSettings(template, datetime(2025, 1, 2))
    body = {"messages": [{"role": "user", "content": "x"}]}
    pinned = render(chat(body), settings)
    assert pinned.text == "2025-01-02 x"
    assert "2025-01-02" in pinned.notes[0]
    time_s = datetime(2026, 3, 4, 5, tzinfo=UTC).timestamp()
    timed = render(LoggedRequest("a:1", Family.OPENAI_CHAT, body, time_s), settings)
    assert timed.text == "2026-03-04 x"
    assert not timed.notes


def test_folders_with_and_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no chat template in"):
        ChatTemplate.from_folder(tmp_path)
    config = {
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "bos_token": {"content": "<s>"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    settings = RenderSettings(ChatTemplate.from_folder(tmp_path))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert render(chat(body), settings).text == "<s>hi"
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(ArgumentError, match=r"log\.jsonl:1: the chat template .* refuses"):
        render(chat(body), RenderSettings(ChatTemplate.from_folder(tmp_path)))
    with pytest.raises(ArgumentError, match="is no template: line 1"):
        ChatTemplate("{% if %}", "broken")
