"""The daemon's socket, cut for a while: no event is lost."""

import os
import re
import socket
import threading
import time

from .case import case
from .failure import expect
from .reference import expect_same, fill, finish

# Three thousand steps in about four seconds, each an event.
KIND = "long 3000 1 8"


class Proxy:
    """Passes connections on to the daemon's socket, until they are cut."""

    def __init__(self, path, upstream):
        self.path = str(path)
        self.upstream = upstream
        self.open = set()
        self.is_cut = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            try:
                server = socket.socket(socket.AF_UNIX)
                server.connect(self.upstream)
            except OSError:
                client.close()
                continue
            self.open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, target), daemon=True).start()

    def pump(self, source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(self.change(source, data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def change(self, source, data):
        """What is passed on instead of what one end sent."""
        return data

    def cut(self, seconds):
        """Breaks every connection, and takes no new one for so long."""
        self.is_cut = True
        for connection in list(self.open):
            # Closing alone would not wake a thread that reads from it.
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        self.open.clear()
        time.sleep(seconds)
        self.is_cut = False

    def close(self):
        self.cut(0)
        self.listener.close()


class LostStart(Proxy):
    """Goes away for a while when a container is to start: before the daemon hears of it, or before its answer is passed on."""

    def __init__(self, path, seconds, is_heard):
        super().__init__(path, daemon_socket())
        self.seconds = seconds
        self.is_heard = is_heard

    def change(self, source, data):
        if self.seconds is None or not re.match(rb"POST \S*/containers/[0-9a-f]+/start\b", data):
            return data
        seconds, self.seconds = self.seconds, None
        if self.is_heard:
            with socket.socket(socket.AF_UNIX) as daemon:
                daemon.connect(self.upstream)
                daemon.sendall(data)
                daemon.recv(1 << 16)
        threading.Thread(target=self.cut, args=(seconds,), daemon=True).start()
        raise OSError


def daemon_socket():
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return host.removeprefix("unix://")


@case("cut-socket/docker", needs=("docker", "rustc"))
def cut_socket(folder, rng):
    reference = folder.world.reference(KIND, "docker")
    pipeline = fill(folder, KIND)
    proxy = Proxy(folder.path / "docker.sock", daemon_socket())
    try:
        folder.env["DOCKER_HOST"] = f"unix://{proxy.path}"
        running = folder.start("run", pipeline, "--engine", "docker")
        # Mostly in the training, which a cut must not end.
        in_training = rng.random() < 0.8
        if in_training:
            folder.wait_for_step(1)
        for _ in range(rng.randint(1, 3)):
            time.sleep(rng.uniform(0, reference.seconds / 3))
            proxy.cut(rng.uniform(0.1, 1.5))
        answer = running.end(120)
        if answer.code != 0 and not in_training:
            finish(folder, pipeline, "docker")
        expect_same(folder, reference)
    finally:
        proxy.close()


@case("lost-start/docker", needs=("docker", "rustc"))
def lost_start(folder, rng):
    """The container runs, or does not: `pipe` waits for the daemon and finds out."""
    reference = folder.world.reference(KIND, "docker")
    pipeline = fill(folder, KIND)
    proxy = LostStart(folder.path / "docker.sock", rng.choice([0.1, 1, 3]), folder.index % 2 == 0)
    try:
        folder.env["DOCKER_HOST"] = f"unix://{proxy.path}"
        folder.pipe("run", pipeline, "--engine", "docker", timeout=120, code=0)
        expect(proxy.seconds is None, "no container was started")
        expect_same(folder, reference)
    finally:
        proxy.close()
