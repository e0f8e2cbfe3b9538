#!/usr/bin/env python3
"""The rings of docs/design/maglev.md in another language: prints the test vectors, or with a file, checks them.

Written from the document alone, without weir's code, and slow. `rings.py > rings.json` makes the vectors,
`rings.py rings.json` says whether they are right.
"""

import hashlib
import hmac
import ipaddress
import json
import struct
import sys
import zlib

M32, M64 = 2**32 - 1, 2**64 - 1


def rotl(x, n, bits=64):
    return (x << n | x >> (bits - n)) & (2**bits - 1)


# ---- weir ----

K0, K1, K2 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B


def select_hash(seed, words):
    key = rotl((seed ^ K1) * K0 & M64, 32)
    total = key
    for word in words:
        low = ((word & M32) + (key & M32)) & M32
        high = ((word >> 32) + (key >> 32)) & M32
        total = (total + low * high) & M64
        key = (key + K0) & M64
    x = total
    x = (x ^ rotl(x, 25) ^ rotl(x, 47)) * K1 & M64
    x = (x ^ rotl(x, 23) ^ rotl(x, 51)) * K2 & M64
    return x ^ rotl(x, 27) ^ rotl(x, 49)


def name_hash(name):
    name = name.encode()
    parts = [name[at : at + 8].ljust(8, b"\0") for at in range(0, len(name), 8)]
    return select_hash(0, [len(name)] + [int.from_bytes(part, "big") for part in parts])


def finalize(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def maglev(back_ends, size):
    live = [(name_hash(one["name"]), one["weight"], at) for at, one in enumerate(back_ends) if one["weight"]]
    live.sort()
    next_at = [finalize(i ^ 0x6F66667365740000) % size for i, _, _ in live]
    skip = [finalize(i ^ 0x736B697000000000) % (size - 1) + 1 for i, _, _ in live]
    taken, slots = [0] * len(live), [0xFFFF] * size
    for _ in range(size if live else 0):
        turn = 0
        for other in range(1, len(live)):
            if (2 * taken[other] + 1) * live[turn][1] < (2 * taken[turn] + 1) * live[other][1]:
                turn = other
        while slots[next_at[turn]] != 0xFFFF:
            next_at[turn] = (next_at[turn] + skip[turn]) % size
        slots[next_at[turn]] = live[turn][2]
        taken[turn] += 1
    return slots


def flow_words(source, destination, protocol, sport, dport):
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    last = sport << 48 | dport << 32 | protocol << 24
    if source.version == 4:
        return [0xFF00000000000004, int(source), 0, int(destination), last]
    halves = [half for ip in (source, destination) for half in (int(ip) >> 64, int(ip) & M64)]
    return halves + [last]


# ---- Katran ----


def spooky_of_16(octets):
    mark = 0xDEADBEEFDEADBEEF
    h = [0, 0] + [(mark + word) & M64 for word in struct.unpack("<2Q", octets)]
    for step, n in enumerate([50, 52, 30, 41, 54, 48, 38, 37, 62, 34, 5, 36]):
        a, b, c = (step + 2) % 4, (step + 3) % 4, step % 4
        h[a] = (rotl(h[a], n) + h[b]) & M64
        h[c] ^= h[a]
    h[2] = (h[2] + mark) & M64
    h[3] = (h[3] + mark + (16 << 56)) & M64
    for step, n in enumerate([15, 52, 26, 51, 28, 9, 47, 54, 32, 25, 63]):
        a, b = (step + 3) % 4, (step + 2) % 4
        h[a] ^= h[b]
        h[b] = rotl(h[b], n)
        h[a] = (h[a] + h[b]) & M64
    return h[0], h[1]


def combine(upper, lower):
    factor = 0x9DDFEA08EB382D69
    a = (lower ^ upper) * factor & M64
    a ^= a >> 47
    b = (upper ^ a) * factor & M64
    b ^= b >> 47
    return b * factor & M64


def fnv_signed(octets):
    h = 0x811C9DC5
    for octet in octets:
        h = h * 0x01000193 & M32 ^ (octet | 0xFFFFFF00 if octet > 127 else octet)
    return h


def address_hash(address):
    address = ipaddress.ip_address(address)
    if address.version == 4:
        return combine(2, fnv_signed(address.packed))
    return combine(10, combine(*spooky_of_16(address.packed)))


def murmur(first, second, seed):
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    k1 = rotl(first * c1 & M64, 31) * c2 & M64
    k2 = rotl(second * c2 & M64, 33) * c1 & M64
    h1 = ((rotl(seed ^ k1, 27) + seed) * 5 + 0x52DCE729) & M64
    h2 = ((rotl(seed ^ k2, 31) + h1) * 5 + 0x38495AB5) & M64
    h1, h2 = h1 ^ 16, h2 ^ 16
    h1 = (h1 + h2) & M64
    h2 = (h2 + h1) & M64

    def end(x):
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & M64
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & M64
        return x ^ x >> 33

    return (end(h1) + end(h2)) & M64


def katran(back_ends, size, version):
    live = [(address_hash(one["address"]), at, one["weight"]) for at, one in enumerate(back_ends) if one["weight"]]
    live.sort()
    if len(live) == 1:
        return [live[0][1]] * size
    offset = [murmur(h, 42, 0) % size for h, _, _ in live]
    skip = [murmur(h, 2718281828, 2307) % (size - 1) + 1 for h, _, _ in live]
    weight, credit, step = [w for _, _, w in live], [0] * len(live), [0] * len(live)
    most, slots, free = max(weight, default=0), [0xFFFF] * size, size if live else 0
    while free:
        for at, (_, target, _) in enumerate(live):
            if version == 1:
                turns, weight[at] = weight[at], 1
            else:
                credit[at] += weight[at]
                turns = credit[at] >= most
                credit[at] -= most * turns
            for _ in range(min(turns, free)):
                while slots[slot := ((offset[at] + step[at] * skip[at]) & M32) % size] != 0xFFFF:
                    step[at] += 1
                slots[slot] = target
                step[at] += 1
                free -= 1
    return slots


def jhash_end(a, b, c):
    for x, y, n in [
        (2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)
    ]:
        words = [a, b, c]
        words[x] = ((words[x] ^ words[y]) - rotl(words[y], n, 32)) & M32
        a, b, c = words
    return c


def jhash_of_2(first, second, seed):
    begin = (seed + 0xDEADBEEF + 8) & M32
    return jhash_end((first + begin) & M32, (second + begin) & M32, begin)


def jhash_of_16(octets, seed):
    begin = (seed + 0xDEADBEEF + 16) & M32
    words = struct.unpack("<4I", octets)
    h = [(begin + word) & M32 for word in words[:3]]
    # a -= c; a ^= rotl(c, n); c += b: and so on with the letters turned.
    for turn, n in enumerate([4, 6, 8, 16, 19, 4]):
        a, b, c = turn % 3, (turn + 1) % 3, (turn + 2) % 3
        h[a] = (h[a] - h[c]) & M32 ^ rotl(h[c], n, 32)
        h[c] = (h[c] + h[b]) & M32
    return jhash_end((h[0] + words[3]) & M32, h[1], h[2])


def katran_slot(source, sport, dport):
    source = ipaddress.ip_address(source)
    ports = struct.unpack("<I", struct.pack(">HH", sport, dport))[0]
    if source.version == 4:
        first = struct.unpack("<I", source.packed)[0]
    else:
        first = jhash_of_16(source.packed, 512)
    return jhash_of_2(first, ports, 512 * 65537) % 65537


# ---- GLB ----


def siphash(key, message):
    k0, k1 = struct.unpack("<2Q", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & M64
            v[1] = rotl(v[1], 13) ^ v[0]
            v[0] = rotl(v[0], 32)
            v[2] = (v[2] + v[3]) & M64
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & M64
            v[3] = rotl(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & M64
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)

    message += b"\0" * (7 - len(message) % 8) + bytes([len(message) & 255])
    for (word,) in struct.iter_unpack("<Q", message):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def glb(back_ends, seed):
    live = [(at, ipaddress.ip_address(one["address"]).packed) for at, one in enumerate(back_ends) if one["weight"]]
    first, second = [], []
    for row in range(65536):
        row_seed = struct.pack("<Q", siphash(seed, struct.pack(">I", row)))
        rank = lambda one: struct.pack("<Q", siphash(seed, row_seed + one[1]))
        order = sorted(live, key=rank)
        first.append(order[0][0] if order else 0xFFFF)
        second.append(order[1][0] if len(order) > 1 else 0xFFFF)
    return first, second


# ---- vectors ----


def crc(slots):
    return "%08x" % zlib.crc32(struct.pack("<%dH" % len(slots), *slots))


def ring(case):
    """Adds what must come out to a case."""
    back_ends, size = case["back_ends"], case["size"]
    if case["scheduler"] == "maglev":
        slots = maglev(back_ends, size)
    elif case["scheduler"] == "glb":
        slots, second = glb(back_ends, bytes.fromhex(case["glb"]["seed"]))
        case["second_crc32"] = crc(second)
    else:
        slots = katran(back_ends, size, 1 if case["scheduler"] == "katran" else 2)
    name = lambda slot: back_ends[slot]["name"] if slot < len(back_ends) else None
    case["first_slots"] = [name(slot) for slot in slots[:16]]
    case["shares"] = [slots.count(at) for at in range(len(back_ends))]
    case["crc32"] = crc(slots)
    return case


def back_ends(weights, ipv6=False):
    address = lambda at: "fc00::%x" % (at + 1) if ipv6 and at % 2 else "10.0.%d.%d" % (at // 250, at % 250 + 1)
    return [{"name": "web-%d" % at, "address": address(at), "weight": w} for at, w in enumerate(weights)]


def cases():
    yield {"scheduler": "maglev", "size": 13, "back_ends": back_ends([1, 1, 1])}
    yield {"scheduler": "maglev", "size": 61, "back_ends": back_ends([1, 2, 0, 3])}
    yield {"scheduler": "maglev", "size": 65537, "back_ends": back_ends([1] * 100)}
    yield {"scheduler": "maglev", "size": 16381, "back_ends": back_ends([1 + at * at % 997 for at in range(100)])}
    for version in ["katran", "katran_v2"]:
        yield {"scheduler": version, "size": 65537, "back_ends": back_ends([1, 1, 1])}
        yield {"scheduler": version, "size": 65537, "back_ends": back_ends([at % 11 for at in range(100)], True)}
        yield {"scheduler": version, "size": 65537, "back_ends": back_ends([0, 7])}
    seed = {"seed": "34567890123456783456789012345678"}
    yield {"scheduler": "glb", "size": 65536, "glb": seed, "back_ends": back_ends([1, 1, 0, 1], True)}


FLOWS = [
    ("10.0.0.1", "192.0.2.53", 17, 40000, 53),
    ("203.0.113.200", "192.0.2.1", 6, 65535, 443),
    ("2001:db8::c0de", "2001:db8::1", 6, 1024, 80),
    ("fe80::1", "ff02::1", 17, 0, 0),
]


def flow(number, key):
    source, destination, protocol, sport, dport = key
    hash_key = bytes.fromhex("12345678901234561234567890123456")
    message = ipaddress.ip_address(source).packed + struct.pack(">H", sport)
    select = select_hash(0x5EED * number, flow_words(*key))
    return {
        "source": source, "destination": destination, "protocol": protocol, "sport": sport, "dport": dport,
        "hash_seed": 0x5EED * number, "select_hash": "%016x" % select, "maglev_65537": (select >> 32) * 65537 >> 32,
        "katran": katran_slot(source, sport, dport),
        "glb_of_source_and_port": siphash(hash_key, message) & 0xFFFF,
    }


# ---- checksums ----


def ring_key(hash_seed):
    return hashlib.pbkdf2_hmac("sha256", struct.pack(">Q", hash_seed), b"weir ring-1", 65536, 32)


def sum_of(key, lines):
    text = "".join(line + "\n" for line in lines)
    return hmac.new(key, text.encode(), "sha256").hexdigest()[:12]


def ring_sum(key, case):
    """The checksum of a service with a ring of Maglev."""
    back_ends = case["back_ends"]
    slots = maglev(back_ends, case["size"])
    used = sorted({back_ends[slot]["name"].encode() for slot in slots if slot != 0xFFFF})
    by_name = {one["name"].encode(): one for one in back_ends}
    positions = [used.index(back_ends[slot]["name"].encode()) if slot != 0xFFFF else 0xFFFF for slot in slots]
    lines = ["ring-1"] + ["to " + to for to in sorted(case["to"])]
    lines += ["by " + case["by"], "new " + case["new"]]
    lines += ["affinity " + case["affinity"]] if "affinity" in case else []
    for name in used:
        one = by_name[name]
        lines.append("back_end %s %s %s" % (one["name"], one.get("address", "-"), one.get("port", "-")))
    packed = struct.pack(">%dH" % len(positions), *positions)
    lines += ["size %d" % case["size"], "slots " + hashlib.sha256(packed).hexdigest()]
    return sum_of(key, lines)


# What the configuration of the test says, as the checksum sees it.
CONFIGURED = {
    "hash_seed": 0x2F6C9D1E5B83A740,
    "services": {
        "web": {
            "to": ["6 192.0.2.80/32 80-80", "6 192.0.2.80/32 443-443", "6 2001:db8::/64 80-80"],
            "by": "5-tuple", "new": "hash", "size": 1021,
            "back_ends": [
                {"name": "web-10", "weight": 1, "address": "10.0.0.10"},
                {"name": "web-9", "weight": 3},
                {"name": "off", "weight": 0, "address": "10.0.0.12"},
            ],
        },
        "dns": {
            "to": ["17 192.0.2.53/32 53-53"], "by": "5-tuple", "new": "round_robin", "size": 251,
            "back_ends": [
                {"name": "ns1", "weight": 1, "address": "10.0.0.21", "port": 5353},
                {"name": "ns2", "weight": 1, "address": "10.0.0.22"},
            ],
        },
        "api": {
            "to": ["6 192.0.2.81/32 0-65535"], "by": "5-tuple", "new": "hash", "size": 251,
            "affinity": "24 56 remembered", "back_ends": [{"name": "a", "weight": 1, "address": "10.0.0.31"}],
        },
    },
}


def checksums(configured):
    key = ring_key(configured["hash_seed"])
    sums = {name: ring_sum(key, case) for name, case in configured["services"].items()}
    names = sorted(sums, key=str.encode)
    return {
        "all": sum_of(key, ["ring-1 all"] + ["%s %s" % (sums[name], name) for name in names]),
        "services": {name: sums[name] for name in names},
    }


def vectors():
    names = ["", "a", "web-1", "12345678", "a-name-of-21-letters.."]
    return {
        "names": {name: "%016x" % name_hash(name) for name in names},
        "rings": [ring(case) for case in cases()],
        "flows": [flow(number, key) for number, key in enumerate(FLOWS)],
        "checksums": checksums(CONFIGURED),
    }


def lines(made):
    """One case on each line."""
    text = lambda part: ",\n".join("  " + json.dumps(case) for case in made[part])
    names = json.dumps(made["names"])
    sums = json.dumps(made["checksums"])
    made = (names, text("rings"), text("flows"), sums)
    return '{"names": %s,\n "rings": [\n%s],\n "flows": [\n%s],\n "checksums": %s}' % made


if len(sys.argv) == 1:
    print(lines(vectors()))
elif json.load(open(sys.argv[1])) == vectors():
    print("the vectors are right")
else:
    sys.exit("the vectors are not what docs/design/maglev.md says")
