"""A program that was started by a case, with its output in files so that a full pipe cannot block it."""

import os
import signal
import subprocess
import time

from .failure import Failure

# A panic, an abort, a bad memory access: never an answer to bad input.
CRASHES = {101, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, 134, 139}


class Answer:
    """How a program ended: exit code (negative: signal), output, seconds, the most memory that it and its children held, and that
    it held itself without the files that it had mapped."""

    def __init__(self, command, code, stdout, stderr, seconds, peak_bytes, own_bytes):
        self.command = command
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.seconds = seconds
        self.peak_bytes = peak_bytes
        self.own_bytes = own_bytes

    def __str__(self):
        tail = lambda text: "\n".join("    " + line[:300] for line in text.splitlines()[-20:])
        return (f"{self.command}\n  exit code {self.code} after {self.seconds:.1f}s\n"
                f"  stdout:\n{tail(self.stdout)}\n  stderr:\n{tail(self.stderr)}")


class Running:
    def __init__(self, args, log, **options):
        self.command = " ".join(str(arg) for arg in args)
        self.paths = (f"{log}.stdout", f"{log}.stderr")
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **options)
        self.began = time.monotonic()
        self.answer = None
        self.own_bytes = 0

    @property
    def pid(self):
        return self.child.pid

    def poll(self):
        """The answer, once it has ended."""
        if self.answer is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.child.returncode = code
                seconds = time.monotonic() - self.began
                self.answer = Answer(self.command, code, *map(read_text, self.paths), seconds, usage.ru_maxrss * 1024,
                                     self.own_bytes)
            else:
                self.own_bytes = max(self.own_bytes, anonymous_bytes(self.pid))
        return self.answer

    def signal(self, number):
        """Nothing where it has ended: its id may be another process's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout):
        """The answer, or nothing when it still runs after `timeout` seconds."""
        end = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.answer

    def end(self, timeout):
        """The answer. One that crashed or did not end is a failure."""
        answer = self.wait(timeout)
        if answer is None:
            self.signal(signal.SIGKILL)
            answer = self.wait(10)
            raise Failure(f"did not end within {timeout:.0f}s\n{answer or self.command}")
        return check(answer)

    def kill(self):
        """Kills it. Whether it was alive."""
        was_alive = self.poll() is None
        self.signal(signal.SIGKILL)
        answer = self.wait(10)
        return was_alive and answer is not None and answer.code == -signal.SIGKILL


def check(answer):
    """The answer, unless it is a crash."""
    if answer.code in CRASHES or "panicked at" in answer.stderr:
        raise Failure(f"crashed\n{answer}")
    return answer


def anonymous_bytes(pid):
    """What a process holds now, without mapped files."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0


def read_text(path):
    """The end of a file where it is large."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (4 << 20)))
        return file.read().decode("utf-8", "replace")
