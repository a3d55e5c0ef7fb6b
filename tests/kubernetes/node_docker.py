#!/usr/bin/env python3
"""The Docker daemon as one node of the test cluster sees it: what it makes has a label with its name, and it sees nothing else.

Two kubelets on one daemon would remove each other's pods as unknown. Images are common to all nodes. A negative OomScoreAdj becomes 0:
where the daemon lacks CAP_SYS_RESOURCE no container with one starts.

usage: node_docker.py SOCKET NODE [DAEMON=/var/run/docker.sock]
"""
import json
import os
import re
import socket
import sys
import threading
import urllib.parse

LABEL = "kubernetes-test-node"


class Request:
    """The head of an HTTP request, and what has been read of its body."""

    def __init__(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                raise EOFError
            data += part
        head, self.body = data.split(b"\r\n\r\n", 1)
        first, *self.headers = head.decode("latin-1").split("\r\n")
        self.method, self.target, self.version = first.split(" ", 2)
        self.connection = connection

    def header(self, name):
        for line in self.headers:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def remove_headers(self, *names):
        self.headers = [line for line in self.headers if line.partition(":")[0].strip().lower() not in names]

    def read_line(self):
        while b"\r\n" not in self.body:
            self.read_more()
        line, self.body = self.body.split(b"\r\n", 1)
        return line

    def read_more(self):
        part = self.connection.recv(65536)
        if not part:
            raise EOFError
        self.body += part

    def take(self, size):
        while len(self.body) < size:
            self.read_more()
        taken, self.body = self.body[:size], self.body[size:]
        return taken

    def read_body(self):
        """The whole body: of a known length, or in chunks as Docker's Go client sends it."""
        if self.header("content-length") is not None:
            return self.take(int(self.header("content-length")))
        result = b""
        while True:
            size = int(self.read_line().split(b";")[0], 16)
            result += self.take(size)
            self.take(2)
            if size == 0:
                return result

    def replace_body(self, value):
        self.body = json.dumps(value).encode()
        self.remove_headers("content-length", "transfer-encoding")
        self.headers.append(f"Content-Length: {len(self.body)}")

    def encoded(self):
        lines = [f"{self.method} {self.target} {self.version}", *self.headers]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


def only_of_node(target, node):
    """The address of a list of containers, with the label as one more filter."""
    url = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(url.query))
    # Docker takes a list or a map for a filter; both at once it does not.
    filters = {
        key: value if isinstance(value, dict) else {word: True for word in value}
        for key, value in json.loads(query.get("filters") or "{}").items()
    }
    filters.setdefault("label", {})[f"{LABEL}={node}"] = True
    query["filters"] = json.dumps(filters)
    return f"{url.path}?{urllib.parse.urlencode(query)}"


def rewrite(request, node):
    path = re.sub(r"^/v[0-9.]+", "", urllib.parse.urlsplit(request.target).path)
    if request.method == "GET" and path == "/containers/json":
        request.target = only_of_node(request.target, node)
    elif request.method == "POST" and path == "/containers/create":
        container = json.loads(request.read_body())
        container["Labels"] = {**(container.get("Labels") or {}), LABEL: node}
        host = container.setdefault("HostConfig", {})
        host["OomScoreAdj"] = max(0, host.get("OomScoreAdj") or 0)
        request.replace_body(container)
    # One request for each connection, but exec and attach make theirs a stream of bytes.
    if request.header("upgrade") is None:
        request.remove_headers("connection")
        request.headers.append("Connection: close")


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def serve(connection, daemon, node):
    with connection, socket.socket(socket.AF_UNIX) as upstream:
        try:
            request = Request(connection)
            rewrite(request, node)
            upstream.connect(daemon)
            upstream.sendall(request.encoded())
        except EOFError:
            return
        except OSError as error:
            print(f"node_docker: {error}", file=sys.stderr, flush=True)
            return
        threading.Thread(target=copy, args=(connection, upstream), daemon=True).start()
        copy(upstream, connection)
        # The other thread waits in recv.
        for end in (connection, upstream):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main():
    path, node = sys.argv[1:3]
    daemon = sys.argv[3] if len(sys.argv) > 3 else "/var/run/docker.sock"
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, daemon, node), daemon=True).start()


if __name__ == "__main__":
    main()
