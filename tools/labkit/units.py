"""Link rates as `tc` spells them."""

import re

from labkit.refusal import Refusal

FACTOR = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
LOWEST, HIGHEST = 10**5, 10**11  # bits per second; beyond, tbf or this machine would measure something else


def bits_per_s(text: str) -> int:
    """`200mbit`, `2.5gbit` or a plain number as bits per second. Refuses what is no rate or outside [LOWEST, HIGHEST]."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in FACTOR:
        raise Refusal(f"'{text}' is no rate such as 200mbit or 2.5gbit")
    rate = round(float(match[1]) * FACTOR[match[2]])
    if not LOWEST <= rate <= HIGHEST:
        raise Refusal(f"rate {text} is outside [100kbit, 100gbit]")
    return rate


def rate_text(rate: float) -> str:
    """Bits per second as `tc` takes them, in kbit."""
    return f"{max(1, round(rate / 1000))}kbit"
