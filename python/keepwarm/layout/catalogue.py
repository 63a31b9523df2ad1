"""The nineteen breakers in words: what each is, and what to do. SARIF, JSON and help use these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from keepwarm.layout.findings import Breaker

__all__ = ["BREAKERS", "BreakerText", "Fixing"]


class Fixing(StrEnum):
    """Whether `fix` mends a breaker."""

    YES = "yes"
    PARTLY = "partly"  # the safe part of it
    NO = "no"


@dataclass(frozen=True, slots=True)
class BreakerText:
    """One breaker, for people."""

    title: str
    what: str
    repair: str
    fixing: Fixing = Fixing.NO
    when_fixed: str = ""  # which part, where it is not all of it


BREAKERS: dict[Breaker, BreakerText] = {
    Breaker.PSEUDO_HEADER: BreakerText(
        "Per-request header in the system prompt",
        "A client puts a line of bookkeeping, with a value that is new in each request or "
        "conversation, in front of its system prompt. An engine takes it for text, and nothing "
        "behind it repeats.",
        "Strip the line for every target but the provider that it is meant for.",
        Fixing.PARTLY,
        "lines that are known (x-anthropic-billing-header), except for Anthropic",
    ),
    Breaker.DATE_AT_FRONT: BreakerText(
        "Date or time near the front",
        "The system prompt or a tool carries the time of the request, so that each request, or "
        "each day, has a prefix of its own.",
        "Move it to the last user turn, or give the model a tool that tells the time; where it has "
        "to stay, round it to the day.",
    ),
    Breaker.TEMPLATE_DATE: BreakerText(
        "Date inserted by the chat template",
        "The model's chat template writes today's date, though no request says so: every prefix "
        "ends at midnight.",
        "Pin the date through chat_template_kwargs (date_string), or take it out of the template; "
        "else expect one cold start a day.",
    ),
    Breaker.DYNAMIC_ID: BreakerText(
        "Identifier of one request",
        "A UUID, trace id, session id or the like stands in text that many requests share.",
        "Send it as a header or as metadata; if the model needs it, put it in the last user turn.",
    ),
    Breaker.TOOL_ORDER: BreakerText(
        "Tools in another order",
        "The same tools come in another order, as from a hash map, or from servers that list "
        "theirs as they like. Templates render tools first, so that all else moves.",
        "Sort tools by name, those of the provider first.",
        Fixing.YES,
    ),
    Breaker.KEY_ORDER: BreakerText(
        "JSON written differently",
        "A tool's schema or embedded JSON says the same with other key order, white space or "
        "number format.",
        "Write JSON one way: fixed key order, no white space, numbers as they are.",
        Fixing.PARTLY,
        "keys of tool schemas; names of properties and results of tools when asked for",
    ),
    Breaker.WHITESPACE: BreakerText(
        "White space, line ends or Unicode form",
        "Two texts look the same and differ in spaces, in CRLF against LF, or in composed against "
        "decomposed letters.",
        "Normalise text where it is made: LF, NFC, no spaces at the ends of lines.",
        Fixing.PARTLY,
        "in system text; what users, assistants and tools said is never touched",
    ),
    Breaker.REASONING_STRIPPED: BreakerText(
        "Reasoning gone from the history",
        "The assistant's reasoning was part of what the engine computed, and is missing, or empty, "
        "when the history is sent again. Many templates drop it by themselves: that part is "
        "expected.",
        "Send reasoning_content back with each assistant message where the model's template keeps "
        "it.",
    ),
    Breaker.CACHE_MARKERS: BreakerText(
        "Cache markers",
        "To an engine, a cache_control marker that moves with the conversation can be text, or a "
        "place to cut. To a provider, breakpoints can be too many, too early, or behind what "
        "changes.",
        "Strip markers for engines; for providers put breakpoints at the end of what is shared and "
        "at the end of the conversation.",
        Fixing.PARTLY,
        "stripped for engines; breakpoints for providers stay as they are",
    ),
    Breaker.TOOL_SET: BreakerText(
        "Tools that come and go",
        "The set of tools changes between requests. Templates render tools before everything else, "
        "so that one tool more costs the whole prompt.",
        "Keep the set of a role constant, and forbid tools with tool_choice or allowed_tools.",
    ),
    Breaker.USER_IN_SYSTEM: BreakerText(
        "Data of one user in the system prompt",
        "A name, an address or a preference of one user stands in front of text that all share.",
        "Put what all share first, then what one user needs.",
    ),
    Breaker.FEW_SHOT: BreakerText(
        "Examples that change",
        "Few-shot examples are drawn or shuffled anew for each request.",
        "Choose them once for a role and keep their order.",
    ),
    Breaker.CHUNK_ORDER: BreakerText(
        "Documents in another order",
        "The same retrieved passages come in another order, as a ranking has it.",
        "Sort them by document and position after ranking, or put them behind all that repeats.",
    ),
    Breaker.MEDIA: BreakerText(
        "The same picture or sound by another name",
        "A file is named by a signed URL, or is sent with other bytes or another detail, so that "
        "it counts as new.",
        "Send identical bytes with the same detail, or names that are made of the content.",
    ),
    Breaker.CACHE_SALT: BreakerText(
        "Salt or adapter",
        "cache_salt, or the LoRA adapter, differs: equal prompts are kept apart by intent.",
        "Give one salt to a group that trusts each other, not one to a request; route adapters to "
        "replicas of their own.",
    ),
    Breaker.BLOCK_STRADDLE: BreakerText(
        "Prefix that ends inside of a block",
        "Engines keep whole blocks only: what is left of a shared prefix behind its last whole "
        "block is computed again.",
        "Nothing, unless there are very many short prefixes: then a smaller block.",
    ),
    Breaker.HISTORY_REWRITTEN: BreakerText(
        "History rewritten",
        "Earlier messages were shortened, dropped from the front, summarised, or masked with other "
        "placeholders than before.",
        "Compact rarely and in large steps, never the oldest message each turn; make placeholders "
        "of a keyed hash, so that they stay.",
    ),
    Breaker.MODEL_SWITCH: BreakerText(
        "Another model in one session",
        "A conversation went on with another model, which has computed nothing of it.",
        "Pin the model for a session; weigh the cost of the switch.",
    ),
    Breaker.COLD_FAN_OUT: BreakerText(
        "Equal prompts at once, all cold",
        "Several requests with one new prefix arrive before the first of them has computed it, so "
        "that all do.",
        "Let one go first, and hold the others until it has begun to answer; or send all to one "
        "replica.",
    ),
}
