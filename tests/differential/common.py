# SPDX-License-Identifier: Apache-2.0
"""How values are written for a comparison, and how inputs are changed."""

import functools
import math
import struct
import warnings

warnings.simplefilter("ignore")


def double(value):
    return b"d%016x" % (0x7FF8000000000000 if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value))[0])


def text(value):
    data = value.encode()
    return b"s%d:%s" % (len(data), data)


def written(value):
    """A value in the form that both sides write; raises for what that form has no word for."""
    if value is None:
        return b"n"
    if value is True or value is False:
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i%d " % value
    if isinstance(value, float):
        return double(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (list, tuple)):
        begin, end = (b"[", b"]") if isinstance(value, list) else (b"(", b")")
        return begin + b"".join(map(written, value)) + end
    if isinstance(value, dict):
        if not all(isinstance(key, (str, int)) and not isinstance(key, bool) for key in value):
            raise TypeError("a key of another type")
        return b"{" + b"".join(written(key) + written(item) for key, item in value.items()) + b"}"
    return written_array(value)


def written_array(value):
    import numpy

    if isinstance(value, numpy.generic):
        return written(value.item())
    if not isinstance(value, numpy.ndarray) or value.dtype.kind not in "fi":
        raise TypeError(f"{type(value)}")
    single = value.astype(numpy.float32).ravel()
    bits = single.view(numpy.uint32)
    bits[numpy.isnan(single)] = 0x7FC00000
    return b"a" + b"".join(b"%d," % size for size in value.shape) + b":" + b"".join(b"%08x" % int(one) for one in bits)


def refusing(read):
    """read(case) whose every error is a refusal."""

    @functools.wraps(read)
    def reference(case):
        try:
            return read(case)
        except Exception:  # noqa: BLE001
            return None

    return reference


def changed(rng, data, alphabet=None):
    """One to four changes at random places."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(6)
        some = bytes(rng.choice(alphabet) for _ in range(rng.randint(1, 3))) if alphabet else rng.randbytes(rng.randint(1, 2))
        if way == 0:
            data[at:at] = some
        elif way == 1:
            data[at : at + rng.randint(1, 4)] = b""
        elif way == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif way == 3:
            data[at : at + len(some)] = some
        elif way == 4 and data:
            begin = rng.randrange(len(data))
            data[at:at] = data[begin : begin + rng.randint(1, 12)]
        else:
            del data[at:]
    return bytes(data)


def half_changed(rng, data, alphabet=None):
    return changed(rng, data, alphabet) if rng.random() < 0.5 else data
