"""The formats of strings that JSON Schema names, each as an expression.

Every text of an expression has the format. Some that have it are left out, such as leap seconds,
names with letters that are not of ASCII, and hosts of more than 250 characters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from decoding_jax.constraints.expressions import Expression
from decoding_jax.constraints.patterns import matched

_DAYS = "(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DATE = f"((?!0000)[0-9]{{4}}-({_DAYS})|(?!0000){_LEAP})"
_HOUR = "([01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR}:[0-5][0-9])"
_CLOCK = "([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_CALENDAR = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LAST = f"({_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"({_H16}:){{6}}{_LAST}",
        f"::({_H16}:){{5}}{_LAST}",
        *(
            f"({_H16}(:{_H16}){{0,{n}}})?::({_H16}:){{{4 - n}}}{_LAST}"
            for n in range(5)
        ),
        f"({_H16}(:{_H16}){{0,5}})?::{_H16}",
        f"({_H16}(:{_H16}){{0,6}})?::",
    ]
)  # fmt: skip
_LABEL = "[A-Za-z0-9](-?[A-Za-z0-9]){0,24}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_LOCAL = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HEX = "%[0-9A-Fa-f]{2}"
_PLAIN = r"A-Za-z0-9._~!$&'()*+,;=\-"
_SEGMENT = f"([{_PLAIN}:@]|{_HEX})"
_AUTHORITY = rf"(([{_PLAIN}:]|{_HEX})*@)?(([{_PLAIN}]|{_HEX})*|\[({_IPV6})\])(:[0-9]*)?"
_PATH = f"(/{_SEGMENT}*)*"
_ROOTED = f"/({_SEGMENT}+{_PATH})?"
_REST = rf"(\?({_SEGMENT}|[/?])*)?(#({_SEGMENT}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(//{_AUTHORITY}{_PATH}|{_ROOTED}|{_SEGMENT}+{_PATH}|){_REST}"
_RELATIVE = f"(//{_AUTHORITY}{_PATH}|{_ROOTED}|([{_PLAIN}@]|{_HEX})+{_PATH}|){_REST}"
_NAME = f"([A-Za-z0-9_]|{_HEX})"
_VARIABLE = rf"{_NAME}(\.?{_NAME})*(\*|:[1-9][0-9]{{0,3}})?"
_TEMPLATE = (
    rf"([A-Za-z0-9!#$&()*+,./:;=?@\[\]_~-]|{_HEX}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*"
)
_POINTER = "(/([^/~]|~[01])*)*"
_CLASS = r"\[\^?(a-z|A-Z|0-9|[A-Za-z0-9_ .]|\\[dDwWsS])+-?\]"
_ATOM = rf"([A-Za-z0-9 _,:;@%=<>!~/-]|\\[dDwWsS.*+?()\[\]{{}}|/^$]|\.|{_CLASS})"
_RANGES = "|".join(f"{n},[{n}-9]" for n in range(10))
_COUNT = rf"\{{([0-9]{{1,2}},?|[0-9],[1-9][0-9]|{_RANGES})\}}"
_PIECE = rf"{_ATOM}([*+?]|{_COUNT})?"
_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+W|{_CALENDAR}(T{_CLOCK})?|T{_CLOCK})",
    "email": rf"{_LOCAL}(\.{_LOCAL})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "uri-template": _TEMPLATE,
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]{{0,8}})(#|{_POINTER})",
    "regex": rf"\^?({_PIECE}|\(({_PIECE})+(\|({_PIECE})+)*\)[*+?]?)*\$?",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base32": "([A-Z2-7]{8})*([A-Z2-7]{2}={6}|[A-Z2-7]{4}={4}|[A-Z2-7]{5}={3}|[A-Z2-7]{7}=)?",
    "base16": "([0-9A-F]{2})*",
}
_PATTERNS |= {
    "idn-email": _PATTERNS["email"],
    "idn-hostname": _PATTERNS["hostname"],
    "iri": _PATTERNS["uri"],
    "iri-reference": _PATTERNS["uri-reference"],
}

FORMATS: dict[str, Callable[[], Expression]] = {
    name: functools.partial(matched, pattern, f"the format {name}")
    for name, pattern in _PATTERNS.items()
}
"""Makes the expression of each format."""
