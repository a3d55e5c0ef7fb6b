#!/usr/bin/env python3
"""Names in the test cluster (Debian has no CoreDNS): SERVICE.NAMESPACE.svc.cluster.local, and HOSTNAME.SERVICE... for pods that have a
`hostname` and a `subdomain`. A records over UDP. Other names are asked of the machine's own name server.

usage: dns.py ADDRESS API_URL CERTIFICATES
"""
import json
import re
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
import urllib.request

ZONE = "cluster.local"
A, NO_SUCH_NAME = 1, 3

addresses = {}


def items(url, kind, context):
    with urllib.request.urlopen(f"{url}/api/v1/{kind}", context=context, timeout=5) as answer:
        return json.load(answer)["items"]


def read_names(url, context):
    """All names with their addresses, from services and endpoints."""
    names, headless = {}, set()

    def name_of(item):
        return f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.{ZONE}"

    for service in items(url, "services", context):
        address = service["spec"].get("clusterIP", "None")
        if address == "None":
            headless.add(name_of(service))
        names[name_of(service)] = [] if address == "None" else [address]
    for endpoints in items(url, "endpoints", context):
        service = name_of(endpoints)
        for subset in endpoints.get("subsets") or []:
            for address in subset.get("addresses") or []:
                if service in headless:
                    names[service].append(address["ip"])
                if "hostname" in address:
                    names.setdefault(f"{address['hostname']}.{service}", []).append(address["ip"])
    return names


def poll(url, certificates):
    global addresses
    context = ssl.create_default_context(cafile=f"{certificates}/ca.crt")
    context.load_cert_chain(f"{certificates}/admin.crt", f"{certificates}/admin.key")
    while True:
        try:
            addresses = read_names(url, context)
        except (OSError, ValueError) as error:
            print(f"dns: {error}", file=sys.stderr, flush=True)
        time.sleep(0.5)


def question(packet):
    """The name, the type and the end of the first question."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode("latin-1"))
        at += 1 + packet[at]
    return ".".join(labels).lower(), struct.unpack("!H", packet[at + 1 : at + 3])[0], at + 5


def answer(packet):
    name, kind, end = question(packet)
    if name != ZONE and not name.endswith("." + ZONE):
        return forward(packet)
    found = addresses.get(name, []) if kind == A else []
    asks_for_recursion = struct.unpack("!H", packet[2:4])[0] & 0x0100
    flags = 0x8400 | asks_for_recursion | (0 if name in addresses else NO_SUCH_NAME)
    head = packet[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0)
    # Each record points at the name in the question, and is valid for a second.
    records = (b"\xc0\x0c" + struct.pack("!HHIH", A, 1, 1, 4) + socket.inet_aton(address) for address in found)
    return head + packet[12:end] + b"".join(records)


def forward(packet):
    with open("/etc/resolv.conf") as file:
        servers = re.findall(r"^nameserver\s+(\d+\.\S+)", file.read(), re.M)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as upstream:
        upstream.settimeout(2)
        upstream.sendto(packet, (servers[0] if servers else "127.0.0.1", 53))
        return upstream.recv(4096)


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        packet, connection = self.request
        try:
            connection.sendto(answer(packet), self.client_address)
        except (OSError, IndexError, struct.error):
            pass


class Server(socketserver.ThreadingUDPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    threading.Thread(target=poll, args=sys.argv[2:4], daemon=True).start()
    Server((sys.argv[1], 53), Handler).serve_forever()
