//! The names that other trainers have for the settings of a pipeline: those of the transformers Trainer and its example
//! scripts. Used by the errors for unknown keys and values, in the file and in `--set`.

use crate::yaml::{OtherName, OtherNames};

/// The names of the transformers Trainer.
pub(crate) struct Transformers;

impl OtherNames for Transformers {
    fn key(&self, name: &str) -> Option<&OtherName> {
        KEYS.iter().find(|known| known.name == name)
    }

    fn value(&self, path: &str, value: &str) -> Option<&str> {
        let known = VALUES.iter().find(|(key_path, values, _)| *key_path == path && values.contains(&value));
        known.map(|(_, _, suggestion)| *suggestion)
    }
}

const fn key(name: &'static str, paths: &'static [&'static str], note: &'static str) -> OtherName {
    OtherName { name, paths, note }
}

/// By name: the keys that do the same (the first that the schema has is named), and what is different about them.
const KEYS: &[OtherName] = &[
    key("adam_beta1", &["train.optimizer.betas"], "it is a list of both"),
    key("adam_beta2", &["train.optimizer.betas"], "it is a list of both"),
    key("adam_epsilon", &["train.optimizer.eps"], ""),
    key("batch_size", &["train.batch"], ""),
    key("bf16", &["train.precision"], "`train.precision: bf16-mixed` does the same as `bf16: true`"),
    key("config_name", &["model.config"], "it holds the keys of a config.json"),
    key("dataloader_num_workers", &["data.workers"], ""),
    key("dataset_name", &["data.train"], "a data set of the hub is hf://datasets/owner/name/path"),
    key("epochs", &["train.epochs", "train.steps"], ""),
    key("eval_batch_size", &["evaluate.batch"], ""),
    key("eval_steps", &["evaluate.every"], ""),
    key("eval_strategy", &["evaluate.every"], "a number of steps, or `epoch`"),
    key("evaluation_strategy", &["evaluate.every"], "a number of steps, or `epoch`"),
    key("fp16", &["train.precision"], "`train.precision: fp16-mixed` does the same as `fp16: true`"),
    key("generation_max_length", &["data.max_target"], ""),
    key("generation_num_beams", &["evaluate.beams"], ""),
    key(
        "gradient_accumulation_steps",
        &["train.effective_batch"],
        "it is the samples of a step: the batch times the accumulation",
    ),
    key("gradient_checkpointing", &["train.checkpointing"], ""),
    key("greater_is_better", &["save.best"], "each metric knows whether more is better"),
    key("learning_rate", &["train.optimizer.lr"], ""),
    key("load_best_model_at_end", &["save.best"], "it names the metric"),
    key("logging_steps", &[], "every step is recorded, there is nothing to set"),
    key("lr", &["train.optimizer.lr"], ""),
    key("lr_scheduler_type", &["train.schedule.kind"], ""),
    key("max_grad_norm", &["train.clip"], ""),
    key("max_length", &["data.max_length"], "for text to text: data.max_source and data.max_target"),
    key("max_seq_length", &["data.max_length"], "for text to text: data.max_source and data.max_target"),
    key("max_source_length", &["data.max_source"], ""),
    key("max_steps", &["train.steps"], ""),
    key("max_target_length", &["data.max_target"], ""),
    key("metric_for_best_model", &["save.best"], ""),
    key("model_name_or_path", &["model.from"], ""),
    key("num_beams", &["evaluate.beams"], ""),
    key("num_epochs", &["train.epochs", "train.steps"], ""),
    key("num_train_epochs", &["train.epochs", "train.steps"], ""),
    key("optim", &["train.optimizer.kind"], ""),
    key("output_dir", &[], "runs are written to the folder that PIPE_RUNS names (./runs without it)"),
    key("per_device_eval_batch_size", &["evaluate.batch"], ""),
    key("per_device_train_batch_size", &["train.batch"], ""),
    key("predict_with_generate", &["evaluate.generate"], "it is the number of texts"),
    key("push_to_hub", &[], "nothing is uploaded; the model is in the folder `model` of the run"),
    key("report_to", &["track"], ""),
    key("resume_from_checkpoint", &[], "`pipe resume RUN` continues a run"),
    key("run_name", &["name"], ""),
    key("save_steps", &["save.every"], ""),
    key("save_strategy", &["save.every"], "a number of steps"),
    key("save_total_limit", &["save.keep"], ""),
    key("seed", &["train.seed"], ""),
    key("test_file", &["data.eval"], ""),
    key("tokenizer_name", &["data.tokenizer"], ""),
    key("train_batch_size", &["train.batch"], ""),
    key("train_file", &["data.train"], ""),
    key("validation_file", &["data.eval"], ""),
    key("validation_split_percentage", &["data.eval_share"], "a share, such as 0.1"),
    key("warmup_ratio", &["train.schedule.warmup"], "a share of the steps is below 1"),
    key("warmup_steps", &["train.schedule.warmup"], ""),
    key("weight_decay", &["train.optimizer.weight_decay"], ""),
];

/// Path, values of others, and the values to suggest.
const VALUES: &[(&str, &[&str], &str)] = &[
    ("train.precision", &["fp16", "float16", "half", "16", "16-mixed"], "`fp16-mixed`, or `bf16-mixed` on newer cards"),
    ("train.precision", &["bfloat16"], "`bf16-mixed`, or `bf16` with weights in 16 bits too"),
    ("train.precision", &["float32", "float", "full", "no", "32"], "`fp32`"),
    ("train.optimizer.kind", &["adam", "adamw_torch", "adamw_torch_fused", "adamw_hf"], "`adamw`"),
    ("train.schedule.kind", &["constant_with_warmup"], "`constant`, and a `warmup`"),
    ("evaluate.every", &["steps"], "`epoch`, or a number of steps"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_once_and_in_order() {
        let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(KEYS.iter().all(|key| !key.paths.is_empty() || !key.note.is_empty()));
    }
}
