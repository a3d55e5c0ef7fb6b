//! `suggest <function> <sampler> <trials> <seeds>`: searches of a function with a known minimum, one line of JSON for each seed. For
//! `tests/bench_tune.py`.

#[path = "../tests/functions/mod.rs"]
mod functions;

use pipe_search::Sampler;
use serde_json::json;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, sampler, count, seeds] = arguments.as_slice() else {
        return Err("usage: suggest <function> <tpe|random> <trials> <seeds>".to_owned());
    };
    let sampler = match sampler.as_str() {
        "tpe" => Sampler::Tpe,
        "random" => Sampler::Random,
        other => return Err(format!("no sampler {other}")),
    };
    let whole = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let function = functions::all().into_iter().find(|function| function.name == name);
    let function = function.ok_or_else(|| format!("no function {name}"))?;
    for seed in 0..whole(seeds)? {
        let trials = function.search(sampler, whole(count)?, seed);
        let points: Vec<_> = trials.iter().map(|trial| &trial.point).collect();
        let values: Vec<_> = trials.iter().map(|trial| trial.values[0]).collect();
        let best = functions::best_value(&trials);
        println!(
            "{}",
            json!({"seed": seed, "best": best, "optimum": function.optimum, "points": points, "values": values})
        );
    }
    Ok(())
}
