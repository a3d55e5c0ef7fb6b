#!/usr/bin/env python3
"""What Optuna sees of a study of `pipe tune`, while it runs and after, and what `pipe tune` sees of one that Optuna began.

usage: optuna_tune.py PIPE STUDY_FILE      (in a folder with the study `search` over vars.x; Optuna is found through PYTHONPATH)
Prints one JSON object; every difference is an assertion that fails.
"""
import json
import subprocess
import sys
import time

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

PIPE, FILE = sys.argv[1:3]
optuna.logging.set_verbosity(optuna.logging.ERROR)


def pipe(*words):
    return subprocess.run([PIPE, *words], check=True, capture_output=True, text=True).stdout


def status():
    return json.loads(pipe("tune", "status", "--json"))


def load(path, name="search"):
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def began_by_pipe():
    pipe("tune", "run", FILE, "--detach")
    deadline = time.monotonic() + 100
    while len(status()["trials"]) < 2:
        assert time.monotonic() < deadline, status()
    seen = load(status()["storage"])
    assert seen.trials and seen.direction == optuna.study.StudyDirection.MINIMIZE
    seen.enqueue_trial({"vars.x": 0.5})
    pipe("attach")
    ours, theirs = status(), load(status()["storage"])
    assert ours["status"] == "finished", ours
    assert len(ours["trials"]) == len(theirs.trials)
    for mine, trial in zip(ours["trials"], theirs.trials):
        assert mine["params"] == trial.params, (mine, trial)
        assert mine["values"] == (trial.values or []), (mine, trial)
        expected = {"complete": TrialState.COMPLETE, "infeasible": TrialState.PRUNED, "out_of_memory": TrialState.PRUNED}
        assert expected[mine["state"]] == trial.state, (mine, trial)
        assert trial.user_attrs["study"] == ours["id"]
    enqueued = [trial for trial in theirs.trials if "fixed_params" in trial.system_attrs]
    assert len(enqueued) == 1 and enqueued[0].params["vars.x"] == 0.5 and enqueued[0].value == 0.0, enqueued
    assert theirs.best_trial.number == ours["best"][0] == enqueued[0].number
    return len(theirs.trials)


def began_by_optuna():
    storage = JournalStorage(JournalFileBackend("theirs.log"))
    study = optuna.create_study(study_name="search", storage=storage, direction="minimize")
    study.optimize(lambda trial: (trial.suggest_float("vars.x", -2.0, 1.8) - 0.5) ** 2, n_trials=12)
    before = [(trial.params, trial.value) for trial in study.trials]
    pipe("tune", "run", FILE, "--set", "storage=theirs.log", "--set", "budget.trials=3")
    ours = status()
    assert [(trial["params"], trial["values"][0]) for trial in ours["trials"][:12]] == before
    assert len(ours["trials"]) == 15 and ours["counts"]["complete"] == 15, ours["counts"]
    # And Optuna goes on with what pipe has added.
    again = load("theirs.log")
    again.optimize(lambda trial: (trial.suggest_float("vars.x", -2.0, 1.8) - 0.5) ** 2, n_trials=2)
    assert len(status()["trials"]) == 17
    return len(again.trials)


print(json.dumps({"optuna": optuna.__version__, "began_by_pipe": began_by_pipe(), "began_by_optuna": began_by_optuna()}))
