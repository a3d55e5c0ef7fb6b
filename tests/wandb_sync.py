"""Runs the real `wandb sync` on folders, against a server of its own on the loopback, and prints what was uploaded as JSON:
for each upload the run as it was created (`run`), its config, its history by line, its summary, its files and how it ended.
usage: PYTHONPATH=target/wandb wandb_sync.py FOLDER..."""

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

uploads = {}
lock = threading.Lock()


def upload(run):
    return uploads.setdefault(run, {"run": {}, "config": {}, "history": {}, "summary": {}, "files": {}, "exitcode": None})


def upsert(given):
    """Creates or changes a run."""
    run = upload(given["name"])
    run["run"].update({key: value for key, value in given.items() if value is not None and key != "config"})
    config = json.loads(given.get("config") or "{}")
    run["config"].update({key: entry["value"] for key, entry in config.items()})
    project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": given.get("entity") or "nobody"}}
    bucket = {"id": "r", "name": given["name"], "displayName": run["run"].get("displayName"), "description": "",
              "config": "{}", "sweepName": None, "historyLineCount": 0, "project": project}
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


def stream(run, body):
    """Lines of the history go where they say; the last summary counts."""
    for name, part in body.get("files", {}).items():
        for index, line in enumerate(part["content"]):
            if name == "wandb-history.jsonl":
                run["history"][part["offset"] + index] = json.loads(line)
            if name == "wandb-summary.json":
                run["summary"] = json.loads(line)
    if body.get("complete"):
        run["exitcode"] = body["exitcode"]


class Server(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        with lock:
            answer = json.dumps(self.handle_request(body)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def handle_request(self, body):
        parts = self.path.strip("/").split("/")
        if parts[0] == "graphql":
            asked = json.loads(body)
            given = asked.get("variables") or {}
            if "upsertBucket" in asked["query"]:
                return {"data": upsert(given)}
            if asked.get("operationName") == "CreateRunFiles":
                place = f"http://127.0.0.1:{self.server.server_port}/put/{given['run']}"
                files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in given["files"]]
                return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
            return {"data": {}}
        if parts[0] == "put":
            upload(parts[1])["files"]["/".join(parts[2:])] = body.decode()
        if parts[-1] == "file_stream":
            stream(upload(parts[3]), json.loads(body))
        return {}

    do_GET = do_POST = do_PUT = answer


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "0" * 40, "NO_PROXY": "127.0.0.1",
           "no_proxy": "127.0.0.1", "WANDB_ERROR_REPORTING": "false"}
    synced = subprocess.run([sys.executable, "-m", "wandb", "sync", *sys.argv[1:]], env={**os.environ, **own},
                            stdout=sys.stderr, timeout=120)
    for run in uploads.values():
        run["history"] = [run["history"][line] for line in sorted(run["history"])]
    json.dump(uploads, sys.stdout)
    sys.exit(synced.returncode)


main()
