//! The search finds more than chance does. What Optuna finds beside it: `tests/bench_tune.py`.

mod functions;

use functions::Function;
use pipe_search::Sampler;

const SEEDS: u64 = 30;
const TRIALS: u64 = 100;

#[test]
fn tpe_beats_random_on_every_function() {
    let functions = functions::all();
    std::thread::scope(|scope| {
        for function in &functions {
            scope.spawn(|| assert_beats_random(function));
        }
    });
}

fn assert_beats_random(function: &Function) {
    let regret = |sampler| {
        let best = (0..SEEDS).map(|seed| functions::best_value(&function.search(sampler, TRIALS, seed)));
        best.sum::<f64>() / SEEDS as f64 - function.optimum
    };
    let (tpe, random) = (regret(Sampler::Tpe), regret(Sampler::Random));
    assert!(tpe >= 0.0, "{}: below the optimum by {}", function.name, -tpe);
    assert!(tpe < 0.6 * random, "{}: {tpe:.4} above the optimum, random {random:.4}", function.name);
}
