#!/usr/bin/env python3
"""Studies of pipe in the real Optuna and the other way round, in one journal file, for the Optuna that PYTHONPATH names.

    PYTHONPATH=target/optuna5 tests/optuna_study.py --journal target/release/examples/journal
    PYTHONPATH=target/optuna4:target/optuna5 tests/optuna_study.py --journal ...       the same with Optuna 4
    tests/optuna_study.py --journal ... killed                                         only tests whose name contains this

The program is src/pipe-search/examples/journal.rs: `cargo build --release -p pipe-search --example journal`.
"""

import argparse
import datetime
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

JOURNAL = None
KILLS = 30
START = 1_753_000_000.123456
CHOICES = ["adamw", 1, 2.5, True, None, 'größe "x"\n']
STATES = {"waiting": TrialState.WAITING, "running": TrialState.RUNNING, "complete": TrialState.COMPLETE,
          "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


def rust(*arguments):
    """What the program prints."""
    return subprocess.run([JOURNAL, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=120).stdout


def storage(path):
    return JournalStorage(JournalFileBackend(str(path)))


def load(path, name="s", **options):
    return optuna.load_study(study_name=name, storage=storage(path), **options)


def objective(trial):
    trial.suggest_categorical("train.optimizer", CHOICES)
    lr = trial.suggest_float("train.lr", 1e-6, 0.1, log=True)
    trial.suggest_float("train.dropout", 0.0, 0.5, step=0.1)
    decay = trial.suggest_float("train.decay", -1.0, 1.0)
    trial.suggest_int("model.layers", 2, 10, step=4)
    width = trial.suggest_int("model.width", 8, 4096, log=True)
    trial.set_user_attr("over", decay - 0.5)
    for step in range(3):
        trial.report(decay + step, step)
    if trial.number % 5 == 0:
        raise optuna.TrialPruned()
    return math.log(lr) ** 2 + decay + width / 1000


def constraints(trial):
    return (trial.user_attrs.get("over", 0.0),)


def number(value):
    return float(value) if isinstance(value, str) else value


def assert_same(left, right, what):
    """Equal, also in kind: 1 is not 1.0 and not True. NaN is NaN."""
    if isinstance(left, float) and isinstance(right, float):
        assert left == right or (math.isnan(left) and math.isnan(right)), (what, left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), (what, left, right)
        for key in left:
            assert_same(left[key], right[key], f"{what}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), (what, left, right)
        for one, other in zip(left, right):
            assert_same(one, other, what)
    else:
        assert type(left) is type(right) and left == right, (what, left, right)


def plain(value):
    """As we read it: what JSON has no number for is a text, and half of a surrogate pair is U+FFFD."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value.encode(errors="replace").decode().replace("?", "\ufffd") if isinstance(value, str) else value


def shape(distribution):
    if isinstance(distribution, CategoricalDistribution):
        return {"choices": list(distribution.choices)}
    kind = float if isinstance(distribution, FloatDistribution) else int
    assert isinstance(distribution, (FloatDistribution, IntDistribution)) and type(distribution.low) is kind
    return {key: getattr(distribution, key) for key in ("low", "high", "log", "step")}


def seconds(at):
    return None if at is None else at.timestamp()


def assert_equal_studies(path, name="s"):
    """What Optuna reads and what we read are the same, field by field."""
    study = load(path, name)
    dump = json.loads(rust("dump", path, name))
    assert dump["directions"] == [direction.name.lower() for direction in study.directions]
    assert_same(dump["user_attrs"], study.user_attrs, "user_attrs of the study")
    trials = study.get_trials(deepcopy=False)
    assert len(dump["trials"]) == len(trials), (len(dump["trials"]), len(trials))
    for ours, theirs in zip(dump["trials"], trials):
        what = f"trial {theirs.number}"
        assert ours["number"] == theirs.number
        assert STATES[ours["state"]] == theirs.state, what
        assert_same(ours["params"], dict(sorted(theirs.params.items())), f"{what} params")
        assert_same(ours["distributions"], {key: shape(one) for key, one in theirs.distributions.items()}, what)
        assert_same([number(value) for value in ours["values"]], [float(one) for one in theirs.values or []], what)
        steps = {int(step): number(value) for step, value in ours["intermediate_values"].items()}
        assert_same(steps, {step: float(one) for step, one in theirs.intermediate_values.items()}, what)
        assert_same(ours["user_attrs"], plain(theirs.user_attrs), f"{what} user_attrs")
        listed = theirs.system_attrs.get("constraints") or []
        assert_same([number(value) for value in ours["constraints"]], [float(one) for one in listed], f"{what} constraints")
        assert ours["system_attrs"].keys() == theirs.system_attrs.keys(), what
        for mine, other in ((ours["began"], theirs.datetime_start), (ours["ended"], theirs.datetime_complete)):
            other = seconds(other)
            assert (mine is None) == (other is None) and (mine is None or abs(mine - other) < 1e-6), (what, mine, other)
    return study


def test_optuna_goes_on_with_a_study_of_ours(folder):
    path = folder / "study.journal"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rust("write", path, "s")
        study = assert_equal_studies(path)
    trials = study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 5 + ["PRUNED"] * 2 + [
        "FAIL", "RUNNING", "WAITING", "COMPLETE"]
    assert_same(study.user_attrs, {"pipeline": {"name": "größe", "steps": [1, 2.5, None, True]}}, "user_attrs")
    first = trials[0]
    assert_same(dict(sorted(first.params.items())), {
        "model.layers": 2, "model.width": 8, "train.decay": 0.0, "train.dropout": 0.0, "train.lr": 1e-06,
        "train.optimizer": "adamw"}, "params")
    assert [trial.params["train.optimizer"] for trial in trials[:6]] == CHOICES
    assert first.distributions["train.dropout"] == FloatDistribution(0.0, 0.5, step=0.1)
    assert first.distributions["train.lr"] == FloatDistribution(1e-6, 0.1, log=True)
    assert first.distributions["model.layers"] == IntDistribution(2, 10, step=4)
    assert first.distributions["model.width"] == IntDistribution(8, 4096, log=True)
    assert first.distributions["train.optimizer"] == CategoricalDistribution(CHOICES)
    assert_same(first.intermediate_values, {1: 2.0, 2: math.nan, 5: -math.inf}, "intermediate values")
    assert first.datetime_start == datetime.datetime.fromtimestamp(START)
    assert abs(first.duration.total_seconds() - 100.25) < 1e-5
    assert trials[6].system_attrs["constraints"] == [math.inf] and trials[6].user_attrs == {"reason": "needs 90 GB"}
    assert trials[5].value == 9.0 and trials[7].values is None and trials[10].value == math.inf
    assert "train.dropout" not in trials[8].params and trials[8].user_attrs == {"gpu": [0, 1]}
    # Trial 4 is the best by value, and not allowed.
    assert study.best_trial.number == 3 and study.best_value == 1.5 - 3 / 7
    assert [summary.n_trials for summary in optuna.get_all_study_summaries(storage(path))] == [11, 4]
    pareto = assert_equal_studies(path, "s-pareto")
    assert [trial.number for trial in pareto.best_trials] == [0, 1, 3]

    sampler = optuna.samplers.TPESampler(seed=1, n_startup_trials=3, multivariate=True, constraints_func=constraints)
    study = load(path, sampler=sampler, pruner=optuna.pruners.MedianPruner())
    study.optimize(objective, n_trials=15)
    # The one that waited was taken, with the value that was asked for.
    assert study.trials[9].state.is_finished() and study.trials[9].params["train.lr"] == 0.01
    assert len(study.trials) == 25
    assert_equal_studies(path)


def test_we_go_on_with_a_study_of_optuna(folder):
    path = folder / "study.journal"
    optuna.create_study(study_name="before", storage=storage(path), direction="maximize").optimize(objective, n_trials=2)
    study = optuna.create_study(study_name="s", storage=storage(path), sampler=optuna.samplers.TPESampler(seed=1))
    study.set_user_attr("any", {"nan": [1, "x", None], "ü": 1e300})
    study.optimize(objective, n_trials=6)
    study.add_trial(optuna.create_trial(
        params={"x": 3, "y": "b"}, distributions={"x": IntDistribution(0, 9), "y": CategoricalDistribution(["a", "b"])},
        value=-math.inf, user_attrs={"file": "name\udc80", "nan": math.nan}, intermediate_values={0: math.nan}))
    optuna.delete_study(study_name="before", storage=storage(path))
    optuna.create_study(study_name="after", storage=storage(path)).optimize(objective, n_trials=1)
    study.enqueue_trial({"train.lr": 0.02, "train.optimizer": None, "model.width": 64})
    assert_equal_studies(path)

    assert rust("add", path, "s", 5, 10, 0).split() == [str(at) for at in range(8, 13)]
    assert len(study.trials) == 13 and study.trials[12].value == 4.0
    assert rust("claim", path, "s").split() == ["7"]
    assert rust("claim", path, "s").split() == []
    claimed = assert_equal_studies(path).trials[7]
    assert claimed.state == TrialState.COMPLETE and claimed.value == 0.125
    assert claimed.params == {"train.lr": 0.02, "train.optimizer": None, "model.width": 64}
    study.optimize(objective, n_trials=3)
    assert_equal_studies(path)
    optuna.create_study(study_name="maximized", storage=storage(path), direction="maximize")
    refused = subprocess.run([JOURNAL, "add", path, "maximized", "1", "1", "0"], capture_output=True, text=True)
    assert refused.returncode == 1 and "directions" in refused.stderr.lower(), refused.stderr


def test_both_write_at_once(folder):
    path = folder / "study.journal"
    optuna.create_study(study_name="s", storage=storage(path))
    workers = [subprocess.Popen([sys.executable, __file__, "--worker", path]) for _ in range(2)]
    while len({trial.user_attrs.get("worker") for trial in load(path).trials}) < 2:
        time.sleep(0.05)
    ours = subprocess.Popen([JOURNAL, "add", path, "s", "100", "100", "20"], stdout=subprocess.PIPE, text=True)
    numbers = [int(line) for line in ours.communicate(timeout=300)[0].split()]
    assert ours.returncode == 0 and [worker.wait(300) for worker in workers] == [0, 0]
    trials = assert_equal_studies(path).trials
    assert len(trials) == 300 and [trial.number for trial in trials] == list(range(300))
    assert all(trial.state.is_finished() for trial in trials)
    mine = [trial for trial in trials if trial.user_attrs.get("writer") == ours.pid]
    assert [trial.number for trial in mine] == numbers and [trial.user_attrs["at"] for trial in mine] == list(range(100))
    for worker in workers:
        assert sum(trial.user_attrs.get("worker") == worker.pid for trial in trials) == 100
    changes = sum(one.user_attrs.get("writer") != other.user_attrs.get("writer") for one, other in zip(trials, trials[1:]))
    assert changes > 10, f"they did not write at once: {changes}"


def work(path):
    """A worker of Optuna: 100 trials, in the middle of others."""
    study = load(path, sampler=optuna.samplers.RandomSampler())

    def one(trial):
        trial.set_user_attr("worker", os.getpid())
        return objective(trial)

    study.optimize(one, n_trials=100)


def test_a_writer_is_killed(folder):
    path = folder / "study.journal"
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    known, torn, locked = set(), 0, 0
    for _ in range(KILLS):
        command = [JOURNAL, "add", path, "s", "100000", chance.choice(["100", "30000", "1000000"]), "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(0.02 + chance.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        known |= {int(line) for line in process.communicate()[0].splitlines(keepends=True) if line.endswith("\n")}
        torn += path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        locked += os.path.lexists(f"{path}.lock")
        if b"study_name" not in (path.read_bytes() if path.exists() else b""):
            continue
        trials = load(path).trials
        assert known <= {trial.number for trial in trials}, f"seed {seed}"
        assert all(len(trial.user_attrs["filler"]) == trial.user_attrs["bytes"] and len(trial.params) == 6 for trial in trials), f"seed {seed}"
        assert all(trial.value is not None for trial in trials if trial.state == TrialState.COMPLETE), f"seed {seed}"
    began = time.monotonic()
    rust("add", path, "s", 1, 10, 0)
    assert time.monotonic() - began < 10, "a lock of ours that was left is not waited for"
    study = assert_equal_studies(path)
    study.optimize(objective, n_trials=2)
    trials = assert_equal_studies(path).trials
    print(f"  {len(trials)} trials, {KILLS} kills: {locked} left the lock, {torn} a line without its end")


def test_a_lock_that_we_left_is_taken_away_by_optuna(folder):
    path = folder / "study.journal"
    rust("add", path, "s", 1, 10, 0)
    os.symlink(f"{folder}/./study.journal", f"{path}.lock")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lock = JournalFileSymlinkLock(str(path), grace_period=1)
    study = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path), lock)))
    study.optimize(objective, n_trials=1)
    assert len(assert_equal_studies(path).trials) == 2 and not os.path.lexists(f"{path}.lock")


def test_a_line_without_its_end(folder):
    path = folder / "study.journal"
    study = optuna.create_study(study_name="s", storage=storage(path))
    study.optimize(objective, n_trials=2)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:50])
    rust("add", path, "s", 1, 1, 0)
    assert path.read_bytes().startswith(whole + b'{"op_code"')
    study.optimize(objective, n_trials=1)
    assert len(assert_equal_studies(path).trials) == 4
    # Optuna appends to such a line, and can read no more of the file once another follows. We make that good.
    with open(path, "ab") as file:
        file.write(whole.splitlines(keepends=True)[-1][:50])
    backend = JournalFileBackend(str(path))
    for _ in range(2):
        backend.append_logs([{"op_code": 4, "worker_id": "x", "study_id": 0, "datetime_start": "2026-01-01T00:00:00"}])
    try:
        load(path)
        raise AssertionError("Optuna reads it: the repair is not needed any more")
    except ValueError:
        pass
    rust("add", path, "s", 1, 1, 0)
    assert len(assert_equal_studies(path).trials) == 7


def test_the_dashboard_shows_it(folder):
    try:
        import optuna_dashboard
    except ImportError:
        print("  skipped: no optuna-dashboard")
        return
    path = folder / "study.journal"
    rust("write", path, "s")
    app = optuna_dashboard.wsgi(storage(path))

    def get(url):
        answers = []
        url, _, query = url.partition("?")
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": url, "QUERY_STRING": query, "SERVER_NAME": "localhost",
                   "SERVER_PORT": "80", "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http"}
        body = b"".join(app(environ, lambda status, headers, *_: answers.append(status)))
        assert answers[0].startswith("200"), (url, answers, body)
        return json.loads(body)

    studies = get("/api/studies")["study_summaries"]
    assert [(study["study_name"], study["directions"]) for study in studies] == [
        ("s", ["minimize"]), ("s-pareto", ["minimize", "maximize"])]
    shown = get("/api/studies/0?after=0")["trials"]
    expected = load(path).trials
    assert [trial["number"] for trial in shown] == [trial.number for trial in expected]
    for trial, other in zip(shown, expected):
        assert trial["state"].upper() == other.state.name
        assert {one["name"]: one["param_external_value"] for one in trial["params"]} == {
            name: str(value) for name, value in other.params.items()}
        assert_same([number(value) for value in trial.get("values", [])], list(other.values or []), "values")
        assert_same({one["step"]: number(one["value"]) for one in trial["intermediate_values"]},
                    other.intermediate_values, "intermediate values")
        assert trial.get("datetime_start") == (other.datetime_start and other.datetime_start.isoformat())
        assert {one["key"] for one in trial["user_attrs"]} == set(other.user_attrs)
    assert len(get("/api/studies/1?after=0")["trials"]) == 4


def main():
    global JOURNAL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", help="the program")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("name", nargs="?", default="")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.worker:
        return work(arguments.worker)
    JOURNAL = os.path.abspath(arguments.journal)
    # Multivariate sampling is experimental, and Optuna 5 prefers another way to set constraints.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.simplefilter("ignore", FutureWarning)
    failed = 0
    tests = {name: test for name, test in globals().items() if name.startswith("test_") and arguments.name in name}
    for name, test in tests.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(Path(folder))
                verdict = "ok"
            except Exception:
                traceback.print_exc()
                verdict = "FAILED"
                failed += 1
        print(f"Optuna {optuna.__version__}: {name} ... {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
