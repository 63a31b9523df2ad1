"""The nineteen ways in which prefixes break, one file each.

Fifteen have rules over a difference between two prompts, asked in the order of `RULES`: what is
certain before what is likely. Four look at requests as a whole: salts, models, bursts, blocks.
"""

from __future__ import annotations

from keepwarm.layout.breakers import (
    block_straddle,
    cache_markers,
    cache_salt,
    chunk_order,
    cold_fan_out,
    date_at_front,
    dynamic_id,
    few_shot,
    history_rewritten,
    key_order,
    media,
    model_switch,
    pseudo_header,
    reasoning_stripped,
    template_date,
    tool_order,
    tool_set,
    user_in_system,
    whitespace,
)
from keepwarm.layout.breakers.about import About
from keepwarm.layout.divergence import Rule
from keepwarm.layout.findings import Breaker

RULES: tuple[Rule, ...] = (
    cache_markers.rule,
    reasoning_stripped.rule,
    tool_order.rule,
    tool_set.rule,
    media.rule,
    key_order.rule,
    template_date.rule,
    pseudo_header.rule,
    date_at_front.rule,
    history_rewritten.placeholder_rule,
    dynamic_id.rule,
    whitespace.rule,
    few_shot.rule,
    chunk_order.rule,
    user_in_system.rule,
    history_rewritten.moved_rule,
)

_ALL = (
    *(pseudo_header, date_at_front, template_date, dynamic_id, tool_order, key_order, whitespace),
    *(reasoning_stripped, cache_markers, tool_set, user_in_system, few_shot, chunk_order, media),
    *(cache_salt, block_straddle, history_rewritten, model_switch, cold_fan_out),
)
ABOUT: dict[Breaker, About] = {module.ABOUT.breaker: module.ABOUT for module in _ALL}
