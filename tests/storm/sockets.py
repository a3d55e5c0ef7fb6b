"""The daemon's socket, cut for a while: no event is lost."""

import os
import socket
import threading
import time

from .case import case
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
