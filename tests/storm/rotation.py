"""A daemon that rotates its containers' logs after 64 KiB: every step is in events.jsonl all the same."""

import json
import signal
import subprocess
import time

from .case import case
from .failure import expect
from .reference import expect_nothing_left, expect_same, fill, finish
from .sockets import Proxy

KIND = "long 20000 0 8"
LOGS = {"log-driver": "json-file", "log-opts": {"max-size": "64k", "max-file": "2"}}


class Daemon:
    """A daemon of its own, as tests/runner/stand_ins/daemon.rs starts one: the machine's is left alone."""

    def __init__(self, folder, settings):
        self.folder = folder / "daemon"
        self.folder.mkdir()
        at = lambda name: str(self.folder / name)
        (self.folder / "daemon.json").write_text(json.dumps(settings))
        self.address = f"unix://{at('docker.sock')}"
        # In the machine's network it would remove the bridge of the machine's daemon.
        command = ["unshare", "--net", "dockerd", "--bridge=none", "--iptables=false", "--ip-masq=false", "--config-file",
                   at("daemon.json"), "--storage-driver", "vfs", "--data-root", at("data"), "--exec-root", at("exec"),
                   "--pidfile", at("pid"), "--host", self.address]
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self):
        end = time.monotonic() + 60
        while b"API listen on" not in self.log.read_bytes():
            expect(time.monotonic() < end and self.child.poll() is None, f"the daemon did not start: {self.log}")
            time.sleep(0.05)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
        mounted = [line.split()[1] for line in open("/proc/mounts") if str(self.folder) in line]
        for path in sorted(mounted, reverse=True):
            subprocess.run(["umount", "-l", path], capture_output=True)


@case("rotated-logs/docker", needs=("dockerd", "docker", "rustc"))
def rotated_logs(folder, rng):
    reference = folder.world.reference(KIND, "docker")
    pipeline = fill(folder, KIND)
    daemon = Daemon(folder.path, LOGS)
    try:
        daemon.wait()
        proxy = Proxy(folder.path / "proxy.sock", daemon.address.removeprefix("unix://"))
        folder.env.update(DOCKER_HOST=f"unix://{proxy.path}", DAEMON=daemon.address)
        running = folder.start("run", pipeline, "--engine", "docker")
        folder.wait_for_step(1)
        time.sleep(rng.uniform(0, 0.3))
        if folder.index % 2 == 0:
            # The daemon rotates what the job writes in the meantime before it is read.
            running.kill()
            time.sleep(rng.uniform(1, 4))
        else:
            proxy.cut(rng.uniform(0.5, 2))
            running.end(60)
        finish(folder, pipeline, "docker")
        expect_same(folder, reference)
        proxy.close()
    finally:
        folder.end_everything()
        daemon.stop()
    expect_nothing_left(folder)
