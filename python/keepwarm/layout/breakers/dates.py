"""Dates and times as people and programs write them."""

from __future__ import annotations

import re

_MONTH = (
    "January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
)
_DAY = (
    "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|"
    "Mon|Tues|Tue|Wed|Thurs|Thu|Fri|Sat|Sun"
)
_ISO = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
_SLASH = r"\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_ZONE = r"UTC|GMT|[A-Z]{1,3}[SD]T\b|Z\b|[+-]\d{2}:?\d{2}\b"
_SURE = rf"(?:{_ISO}|{_SLASH}|{_CLOCK}|(?:{_MONTH})\b\.?|(?:{_DAY})\b\.?)"
_PART = rf"(?:{_SURE}|{_ZONE}|\d{{1,4}}(?:st|nd|rd|th)?\b|[AaPp]\.?[Mm]\b\.?)"
#: A run of such parts, one of which can be nothing but a date or a time; or seconds since 1970.
DATE = re.compile(
    rf"(?<![A-Za-z0-9])(?=(?:{_PART}(?:[ ,T]{{0,2}}|,? at )){{0,12}}?{_SURE})"
    rf"{_PART}(?:(?:[ ,T]{{0,2}}|,? (?:at|of|the) ){_PART}){{0,14}}"
    r"|(?<![\dA-Za-z])1[4-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![\dA-Za-z])"
)
