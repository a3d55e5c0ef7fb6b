#!/usr/bin/env python3
"""docker/fetch-libtorch against an index on loopback that cuts connections and sends wrong bytes."""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import libtorch_stand_in as stand_in


class Index(http.server.ThreadingHTTPServer):
    """A package index: /simple/NAME/ and /wheels/FILE, with ranges. `cut` and `spoil` say what goes wrong with a wheel once."""

    def __init__(self, wheels):
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels, self.cut, self.spoil, self.asked = wheels, {}, set(), []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        index = self.server
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "simple":
            stem = name.strip("/").replace("-", "_")
            files = [path.name for path in index.wheels.glob(f"{stem}-*.whl")]
            return self.answer(200, "".join(f'<a href="/wheels/{file}#sha256={digest(index.wheels / file)}">{file}</a>' for file in files).encode(),
                               {"Content-Type": "text/html"})
        data = (index.wheels / name).read_bytes()
        package = name.split("-")[0]
        if "urllib" not in self.headers.get("User-Agent", ""):
            return self.answer(200, data)  # pip itself, which wants the metadata
        given = self.headers.get("Range")
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        index.asked.append((package, start))
        if package in index.spoil:
            index.spoil.discard(package)
            data = data[:-9] + bytes(9)
        rest = data[start:]
        self.answer(206 if given else 200, rest, {"Content-Length": len(rest)}, upto=index.cut.pop(package, None))

    def answer(self, status, body, headers=(), upto=None):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[:upto])


def digest(path):
    return stand_in.hashlib.sha256(path.read_bytes()).hexdigest()


class FetchLibtorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name) / "tree"
        stand_in.make(self.tree)
        self.index = Index(self.tree / "wheels")
        self.addCleanup(self.index.server_close)
        self.addCleanup(self.index.shutdown)
        self.libtorch = self.tree / "target/libtorch"

    def fetch(self, cuda, code=0):
        env = {**os.environ, "PIP_INDEX_URL": self.index.url, "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
        for name in ("http_proxy", "HTTP_PROXY", "PIP_EXTRA_INDEX_URL"):
            env.pop(name, None)
        answer = subprocess.run([self.tree / "docker/fetch-libtorch", self.libtorch, "--cuda", cuda], env=env, capture_output=True, text=True)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer.stderr

    def libraries(self):
        return {path.name for path in (self.libtorch / "lib").iterdir()}

    def packages(self):
        return {key.split()[0] for key in json.loads((self.libtorch / "packages.json").read_text())}

    def test_only_what_is_missing_is_fetched(self):
        self.fetch("0")
        self.assertEqual(self.packages(), set(stand_in.BASE))
        self.index.asked.clear()
        self.fetch("0")
        self.assertEqual(self.index.asked, [])
        self.fetch("1")
        self.assertEqual({name for name, _ in self.index.asked}, {"nvidia_cublas", "nvidia_cuda_nvrtc", "nvidia_cudnn_cu13"})
        self.assertIn("libcudnn_ops.so.9", self.libraries())
        self.assertNotIn("libnvblas.so.13", self.libraries())
        self.assertIn("libcublasLt.so.13 nvidia-cublas==13.1\n", (self.libtorch / "libraries.txt").read_text())
        self.assertFalse((self.tree / "target/libtorch.wheels").exists())
        # Without a word about cards everything stays; CUDA=0 takes their libraries away.
        self.index.asked.clear()
        self.fetch("auto")
        self.assertIn("libcublas.so.13", self.libraries())
        self.fetch("0")
        self.assertEqual(self.libraries(), set(stand_in.BASE["torch==2.11.0"][1]))
        self.assertEqual(self.index.asked, [])

    def test_a_cut_connection_is_continued(self):
        self.index.cut = {"torch": 100_000}
        self.fetch("0")
        self.assertEqual(self.index.asked, [("torch", 0), ("torch", 100_000)])
        self.assertEqual(self.packages(), set(stand_in.BASE))

    def test_an_interrupted_fetch_is_continued(self):
        part = self.tree / "target/libtorch.wheels"
        part.mkdir(parents=True)
        path = next((self.tree / "wheels").glob("torch*"))
        (part / f"{digest(path)}.part").write_bytes(path.read_bytes()[:70_000])
        self.fetch("0")
        self.assertEqual(self.index.asked, [("torch", 70_000)])

    def test_a_damaged_library_is_fetched_again(self):
        self.fetch("1")
        self.index.asked.clear()
        (self.libtorch / "lib/libcudnn_ops.so.9").write_bytes(b"")
        self.fetch("auto")
        self.fetch("1")
        self.assertEqual(self.index.asked, [("nvidia_cudnn_cu13", 0)])
        self.assertNotEqual((self.libtorch / "lib/libcudnn_ops.so.9").stat().st_size, 0)

    def test_wrong_bytes_are_refused_and_not_kept(self):
        self.index.spoil = {"torch"}
        said = self.fetch("0", code=1)
        self.assertIn("torch==2.11.0: the index sent a file with the hash", said)
        self.assertIn("hint: run it again", said)
        self.assertEqual(self.packages(), set())
        self.fetch("0")
        self.assertEqual(self.packages(), set(stand_in.BASE))

    def test_a_disk_that_is_too_small_is_reported_first(self):
        path = self.tree / "docker/libtorch.txt"
        path.write_text(path.read_text().replace("unpacked=", "unpacked=9999999999"))
        said = self.fetch("0", code=1)
        self.assertRegex(said, r"GB of disk are needed in .* GB are free")
        self.assertEqual(self.index.asked, [])

    def test_an_index_without_the_package_is_reported(self):
        next((self.tree / "wheels").glob("torch*")).unlink()
        said = self.fetch("0", code=1)
        self.assertIn("torch==2.11.0 could not be fetched", said)
        self.assertIn("what was fetched is kept", said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
