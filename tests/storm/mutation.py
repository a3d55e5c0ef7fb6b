"""Bytes with faults in them, as disks, networks and people make them."""

INTERESTING = [b"\x00" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80", b"\xff\xff\xff\x7f", b"{", b"}", b"[" * 64, b'"', b"\n",
               b"-1", b"1e999", b"99999999999999999999", b"\xed\xa0\x80", b"\x1b[31m", b"null", b"NaN"]


def mutate(content, rng):
    """One to four changes at random places."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        content = rng.choice([flip, flip, overwrite, truncate, cut, repeat, insert, zero])(content, rng)
    return bytes(content)


def place(content, rng):
    """Somewhere, the beginning more often: headers and lengths are there."""
    if rng.random() < 0.4:
        return rng.randrange(min(len(content), 64) + 1)
    return rng.randrange(len(content) + 1)


def flip(content, rng):
    for _ in range(rng.randint(1, 8) if content else 0):
        content[min(place(content, rng), len(content) - 1)] ^= 1 << rng.randrange(8)
    return content


def overwrite(content, rng):
    at, new = place(content, rng), rng.choice(INTERESTING)
    content[at:at + len(new)] = new
    return content


def insert(content, rng):
    at = place(content, rng)
    content[at:at] = rng.choice(INTERESTING)
    return content


def truncate(content, rng):
    return content[:place(content, rng)]


def cut(content, rng):
    at = place(content, rng)
    del content[at:at + rng.choice([1, 4, 64, 4096])]
    return content


def repeat(content, rng):
    at = place(content, rng)
    piece = content[at:at + rng.choice([1, 16, 256])]
    content[at:at] = piece * rng.choice([1, 2, 16])
    return content


def zero(content, rng):
    at = place(content, rng)
    end = min(len(content), at + rng.choice([1, 16, 4096]))
    content[at:end] = bytes(max(0, end - at))
    return content
