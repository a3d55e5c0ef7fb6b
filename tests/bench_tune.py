#!/usr/bin/env python3
"""How well `pipe tune` searches, beside Optuna: the same functions, number of trials and number of seeds.

    cargo build --release -p pipe-search --example suggest
    python3 tests/bench_tune.py target/release/examples/suggest

It needs Optuna (`pip install optuna`). Regret is the distance from the known minimum, in the mean over all seeds, as a part of what
random search leaves: 1 is no better than random, 0 is the minimum. Exit status 1: somewhere not better than random, or more than
--within above the best of Optuna's.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import warnings

import optuna

CENTRE = [1.3, -2.1, 0.4, 3.0, -0.7]
HEIGHTS = [1.0, 1.2, 3.0, 3.2]
WIDTHS = [
    [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
    [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
    [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
    [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
]
CENTRES = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def line(trial, count, low, high):
    return [trial.suggest_float(f"x{index}", low, high) for index in range(count)]


def sphere5(trial):
    return sum((x - c) ** 2 for x, c in zip(line(trial, 5, -5, 5), CENTRE))


def branin(trial):
    x, y = trial.suggest_float("x0", -5, 10), trial.suggest_float("x1", 0, 15)
    bend = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bend * bend + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann6(trial):
    x = line(trial, 6, 0, 1)
    hills = zip(HEIGHTS, WIDTHS, CENTRES)
    return -sum(h * math.exp(-sum(w * (v - c) ** 2 for w, v, c in zip(ws, x, cs))) for h, ws, cs in hills)


def rosenbrock2(trial):
    x, y = line(trial, 2, -5, 10)
    return 100 * (y - x * x) ** 2 + (1 - x) ** 2


def training(trial):
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam", "rmsprop"])
    lr = math.log10(trial.suggest_float("lr", 1e-5, 1, log=True))
    size = (trial.suggest_int("layers", 1, 8) - 5) / 4
    width = math.log10(trial.suggest_int("width", 8, 1024, log=True) / 200)
    dropout = trial.suggest_float("dropout", 0, 0.5, step=0.05) - 0.15
    if optimizer == "sgd":
        momentum = trial.suggest_float("momentum", 0, 0.99)
        own = 0.15 + 0.3 * (lr + 1 + momentum) ** 2 + 0.4 * (momentum - 0.9) ** 2
    elif optimizer == "adam":
        beta2 = (trial.suggest_float("beta2", 0.9, 0.999) - 0.98) / 0.05
        eps = (math.log10(trial.suggest_float("eps", 1e-10, 1e-4, log=True)) + 8) / 4
        own = 0.1 + 0.3 * (lr + 3) ** 2 + 0.05 * beta2**2 + 0.05 * eps**2
    else:
        own = 0.2 + 0.3 * (lr + 3.5) ** 2
    return own + 0.2 * size**2 + 0.2 * width**2 + 2 * dropout**2 + 0.1 * abs(size * width)


FUNCTIONS = [sphere5, branin, hartmann6, rosenbrock2, training]


def ours(program, function, sampler, trials, seeds):
    """The best value of each seed. The same points must have the same values in both languages."""
    command = [program, function.__name__, sampler, str(trials), str(seeds)]
    found = [json.loads(text) for text in subprocess.run(command, check=True, capture_output=True).stdout.splitlines()]
    for one in found[:3]:
        for point, value in zip(one["points"], one["values"]):
            expected = function(optuna.trial.FixedTrial(point))
            assert math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12), (function.__name__, point, value, expected)
    return [one["best"] for one in found], found[0]["optimum"]


def optunas(function, trials, seeds, **settings):
    best = []
    for seed in range(seeds):
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, **settings))
        study.optimize(function, n_trials=trials)
        best.append(study.best_value)
    return best


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", help="the example `suggest`")
    arguments.add_argument("--trials", type=int, default=100)
    arguments.add_argument("--seeds", type=int, default=30)
    arguments.add_argument("--functions", nargs="*", default=[function.__name__ for function in FUNCTIONS])
    arguments.add_argument("--within", type=float, default=0.05, help="how much more regret than Optuna's is allowed")
    given = arguments.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")

    print(f"Optuna {optuna.__version__}, {given.trials} trials, {given.seeds} seeds")
    print(f"{'function':12} {'sampler':26} {'mean best':>11} {'± s.e.':>9} {'regret':>8}")
    missed = []
    for function in FUNCTIONS:
        if function.__name__ not in given.functions:
            continue
        random, optimum = ours(given.program, function, "random", given.trials, given.seeds)
        rows = {
            "pipe random": random,
            "pipe tpe": ours(given.program, function, "tpe", given.trials, given.seeds)[0],
            "optuna default": optunas(function, given.trials, given.seeds),
            "optuna multivariate, group": optunas(
                function, given.trials, given.seeds, multivariate=True, group=True
            ),
        }
        left_by_random = statistics.mean(random) - optimum
        regrets = {}
        for name, best in rows.items():
            mean, error = statistics.mean(best), statistics.stdev(best) / math.sqrt(len(best))
            regrets[name] = (mean - optimum) / left_by_random
            print(f"{function.__name__:12} {name:26} {mean:11.5f} {error:9.5f} {regrets[name]:8.3f}", flush=True)
        strongest = min(regrets["optuna default"], regrets["optuna multivariate, group"])
        if regrets["pipe tpe"] >= 1:
            missed.append(f"{function.__name__}: not better than random")
        if regrets["pipe tpe"] > strongest + given.within:
            missed.append(f"{function.__name__}: {regrets['pipe tpe']:.3f}, Optuna {strongest:.3f}")
    print("\n".join(missed) or f"better than random, and within {given.within:.0%} of Optuna, on each")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
