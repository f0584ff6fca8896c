"""Distinguishes URLs from paths, and prints URLs without their secrets."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"\?[^\s'\"<>)\]]*")


def is_url(text: str) -> bool:
    """Whether `text` names a remote source (`https://...`, `s3://...`, or one that is refused later) and no path."""
    return _SCHEME.match(text) is not None


def shown(text: str) -> str:
    """A URL, or a text with URLs in it, without logins and queries: they may hold passwords and signatures."""
    return _QUERY.sub("", _LOGIN.sub("", text))
