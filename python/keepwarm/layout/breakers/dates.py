"""Dates and times as people and programs write them."""

from __future__ import annotations

import re

_MONTH = (
    "January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec|"
    "Januar|Februar|März|Mai|Juni|Juli|Oktober|Dezember|"
    "janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|décembre|"
    "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|"
    "janeiro|fevereiro|março|maio|junho|julho|setembro|outubro|novembro|dezembro|"
    "gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|novembre|dicembre|"
    "января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря"
)
_DAY = (
    "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|"
    "Mon|Tues|Tue|Wed|Thurs|Thu|Fri|Sat|Sun|"
    "Montag|Dienstag|Mittwoch|Donnerstag|Freitag|Samstag|Sonntag|"
    "lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|"
    "lunes|martes|miércoles|jueves|viernes|sábado|domingo"
)
_ISO = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
_SLASH = r"\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_ZONE = r"UTC|GMT|[A-Z]{1,3}[SD]T\b|Z\b|[+-]\d{2}:?\d{2}\b"
_EAST_ASIAN = r"\d{1,4}\s?[年月日时時分秒년월일시분초]"
_SURE = (
    rf"(?:{_ISO}|{_SLASH}|{_CLOCK}|{_EAST_ASIAN}|(?:{_MONTH})\b\.?|(?:{_DAY})\b\.?"
    r"|[(\uff08][月火水木金土日월화수목금토일][)\uff09])"
)
_PART = rf"(?:{_SURE}|{_ZONE}|\d{{1,4}}(?:\.(?= )|(?:st|nd|rd|th|er)?\b)|[AaPp]\.?[Mm]\b\.?)"
_LINK = "at|of|the|de|di|del"
#: A run of such parts, one of which can be nothing but a date or a time; or seconds since 1970, or
#: year, month and day without anything between them.
DATE = re.compile(
    rf"(?<![A-Za-z0-9])(?=(?:{_PART}(?:[ ,T]{{0,2}}|,? (?:{_LINK}) )){{0,12}}?{_SURE})"
    rf"{_PART}(?:(?:[ ,T]{{0,2}}|,? (?:{_LINK}) ){_PART}){{0,14}}"
    r"|(?<![\dA-Za-z])1[4-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![\dA-Za-z])"
    r"|(?<![\dA-Za-z])20\d{2}(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])"
    r"(?:T?\d{4}(?:\d{2})?Z?)?(?![\dA-Za-z])"
)
