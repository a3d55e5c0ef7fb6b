"""Another user of the machine (uid 65534) prepares the places that the queue for cards uses: files of the user who runs
`pipe` keep their content and mode, and `pipe` neither hangs nor ignores signals."""

import fcntl
import os
import signal
import time

from .case import CASES, Case
from .failure import expect
from .reference import fill

OTHER = 65534
CARD = "16384 16384\n"
LARGEST = "18446744073709551615"
# The folders of the queue, now and in earlier versions.
QUEUES = ("pipe-gpu-queue", "pipe-gpu-queue-0", "pipe-queue")


class Secrets:
    """Files and a folder that only their owner may read or write."""

    def __init__(self, path):
        self.path = path
        path.mkdir(mode=0o700)
        self.files = [path / name for name in ("key", "mail", "ledger")]
        self.token = f"secret-{os.urandom(8).hex()}"
        for file in self.files:
            file.write_text(f"{self.token} {file.name}\n")
            file.chmod(0o600)
        self.before = self.look()

    def look(self):
        stat = lambda path: (os.lstat(path).st_mode, os.lstat(path).st_uid)
        listed = sorted(os.listdir(self.path))
        return stat(self.path), listed, [(stat(file), file.read_bytes()) for file in self.files]

    def expect_unchanged(self):
        now = self.look()
        expect(now == self.before, f"the secret files changed:\n  before {str(self.before)[:600]}\n  now    {str(now)[:600]}")


class Other:
    """A process of the other user that sets a trap, and holds its locks until it is killed."""

    def __init__(self, place, kind, secrets):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgroups([])
                os.setgid(OTHER)
                os.setuid(OTHER)
                held = set_trap(place, kind, secrets)
                os.write(writer, b"ready")
                while held is not None:
                    time.sleep(60)
            finally:
                os._exit(1)
        os.close(writer)
        self.is_ready = os.read(reader, 16) == b"ready"
        os.close(reader)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def set_trap(place, kind, secrets):
    """Prepares every name that a queue may have. Returns what must be kept open."""
    os.umask(0)
    held = []
    for name in QUEUES:
        queue = place / name
        if kind in ("folder-link", "file-link"):
            queue.symlink_to(secrets if kind == "folder-link" else secrets / "key")
            continue
        card = queue / "gpu-0"
        queue.mkdir()
        # With this bit it looks like a folder that is meant for all.
        queue.chmod(0o1777)
        held += set_files(queue, kind, secrets)
        if kind == "card-link":
            card.symlink_to(secrets)
            continue
        card.mkdir()
        held += set_files(card, kind, secrets)
    return held


def set_files(card, kind, secrets):
    """Traps in the folder of a queue or of one card of it."""
    numbers = ["counter", "lock", "00000000", "00000001", "00000002", "gpu-0-00000000", "gpu-0-00000001", "gpu-0-00000002"]
    if kind in ("links", "card-link"):
        (card / LARGEST).touch()
        for number, name in enumerate(numbers):
            (card / name).symlink_to(secrets / ("key", "mail", "ledger")[number % 3])
    if kind == "fifos":
        for name in numbers:
            os.mkfifo(card / name, 0o666)
    if kind == "numbers":
        for name in (LARGEST, "18446744073709551614", "99999999", "-1", "00000000", "1" * 200, "gpu-0-99999999", "gpu-0--1",
                     "gpu-0-" + LARGEST):
            (card / name).write_text("x" * 100_000)
    if kind == "folders":
        for name in numbers:
            (card / name).mkdir()
    if kind != "locks":
        return []
    held = [open(card / name, "w") for name in numbers]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    return held


KINDS = ["links", "fifos", "numbers", "locks", "folders", "folder-link", "file-link", "card-link"]


def two_users(kind, folder, rng):
    place = folder.path / "tmp"
    folder.path.chmod(0o755)
    place.mkdir()
    place.chmod(0o1777)
    secrets = Secrets(folder.path / "secrets")
    pipeline = fill(folder, "card free")
    folder.write("card", CARD)
    folder.env.update(TMPDIR=str(place), PIPE_QUEUE=None, XDG_RUNTIME_DIR=None, TEST_CARD=str(folder.path / "card"),
                      LD_LIBRARY_PATH=str(folder.world.nvml))
    if rng.random() < 0.3:
        # A queue that the user names himself, in a place that all may write.
        folder.env["PIPE_QUEUE"] = str(place / "pipe-gpu-queue")
    other = Other(place, kind, secrets.path)
    try:
        expect(other.is_ready, f"the trap {kind} was not set")
        running = folder.start("run", pipeline, "--engine", "process", "--set", "container.gpus=1")
        answer = running.wait(3 if kind == "locks" else 20)
        if answer is None:
            # Waiting for the lock of another user is right; ignoring the signal is not.
            expect(kind == "locks", f"{kind}: still runs after 20s")
            running.signal(signal.SIGINT)
            answer = running.end(10)
        running.end(1)
        expect(answer.code == 0 or "error" in answer.stderr or answer.code == 130, f"{kind}\n{answer}")
        expect(kind == "locks" or answer.code in (0, 1, 4), f"{kind}\n{answer}")
        time.sleep(0.1)
        secrets.expect_unchanged()
    finally:
        other.kill()


for kind in KINDS:
    CASES.append(Case(f"two-users/{kind}", ("root", "rustc"), 1, lambda folder, rng, kind=kind: two_users(kind, folder, rng)))
