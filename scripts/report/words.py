# SPDX-License-Identifier: Apache-2.0
"""How figures are written for people: GB is 10^9 bytes, GiB 2^30."""
import math


def three_digits(value):
    """Three digits that count: "0.0123", "4.12", "41.2", "412"."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size == 0:
        return "0"
    places = next((places for least, places in
                   ((99.95, 0), (9.995, 1), (0.0995, 2), (0.00995, 3)) if size >= least), 4)
    return f"{value:.{places}f}"


def interval_text(low, high, unit=1.0):
    return f"[{three_digits(low / unit)}, {three_digits(high / unit)}]"


def bytes_text(count):
    """ "1.50 GiB", "64 MiB"."""
    names = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    name = 0
    value = float(count)
    while value >= (1024 if name == 0 else 1023.995) and name < len(names) - 1:
        value /= 1024
        name += 1
    return f"{value:.0f} {names[name]}" if value == int(value) else f"{value:.2f} {names[name]}"


def block_text(count):
    """As block sizes are given: "4M", "256k"."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


def number_text(number, digits=3):
    """No exponent above 1; of those below 1000 so many digits."""
    return f"{round(number):,}" if number >= 999.5 else f"{number:.{digits}g}"


def seconds_text(seconds):
    """ "41.2 s", "230 ms", "3.4 h"."""
    if seconds >= 2 * 3600:
        return number_text(seconds / 3600) + " h"
    if seconds >= 999.5:
        return f"{seconds:.0f} s"
    if seconds >= 0.9995:
        return number_text(seconds) + " s"
    return number_text(seconds * 1e3) + " ms"


def plural(count, word):
    return f"{count:,} {word}{'' if count == 1 else 's'}"
