//! The space of a study file as the search knows it.

use pipe_search::{Condition, Direction, Domain, Parameter, Pruner, Sampler, Space, Test};
use pipe_spec::study::{self, Goal, Objective, PruneKind, SamplerKind, Study};

pub fn space(study: &Study) -> Space {
    Space { parameters: study.parameters.iter().map(parameter).collect() }
}

fn parameter(parameter: &study::Parameter) -> Parameter {
    let domain = match &parameter.values {
        study::Values::Choices(choices) => Domain::Choices(choices.iter().map(|choice| choice.label.clone()).collect()),
        study::Values::Float { low, high, log, step } => {
            Domain::Float { low: *low, high: *high, log: *log, step: *step }
        }
        study::Values::Int { low, high, log, step } => Domain::Int { low: *low, high: *high, log: *log, step: *step },
    };
    let condition = |condition: &study::Condition| Condition {
        parameter: condition.parameter.clone(),
        test: match &condition.test {
            study::Test::Above(bound) => Test::Above(*bound),
            study::Test::Below(bound) => Test::Below(*bound),
            study::Test::AnyOf(values) => Test::OneOf(values.clone()),
        },
    };
    Parameter { name: parameter.name.clone(), domain, when: parameter.when.iter().map(condition).collect() }
}

pub fn direction(objective: &Objective) -> Direction {
    match objective.direction {
        Goal::Minimize => Direction::Minimize,
        Goal::Maximize => Direction::Maximize,
    }
}

pub fn directions(study: &Study) -> Vec<Direction> {
    study.objectives.iter().map(direction).collect()
}

pub fn sampler(study: &Study) -> Sampler {
    match study.sampler {
        SamplerKind::Tpe => Sampler::Tpe,
        SamplerKind::Random => Sampler::Random,
        SamplerKind::Grid => Sampler::Grid,
    }
}

pub fn pruner(study: &Study) -> Pruner {
    let prune = &study.prune;
    match prune.kind {
        PruneKind::None => Pruner::None,
        PruneKind::Median => Pruner::Median { startup_trials: prune.startup_trials, warmup_steps: prune.warmup_steps },
        PruneKind::Asha => Pruner::Asha { min_steps: prune.min_steps, reduction: prune.reduction },
    }
}
