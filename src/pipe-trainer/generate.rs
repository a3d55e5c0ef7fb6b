//! `pipe-trainer generate`: a trained model writes a text, on the CPU in fp32.

use std::io::{self, Write};

use pipe_model::TaskData;
use pipe_spec::model_folder::{self, TOKENIZER_JSON};
use tch::Tensor;

use crate::cli::GenerateArgs;
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::{Definition, Generation, Setup, Start};
use crate::storage::TensorFiles;
use crate::tokenizer::Tokens;

pub fn generate(args: &GenerateArgs) -> Result<(), TrainerError> {
    let definition = Definition::from_folder(&args.model)?;
    let task_data = definition.task_data()?;
    let files = TensorFiles::open_folder(&args.model)?;
    let model = definition.build(&Start::Tensors { files: &files, seed: 0 }, &Setup::plain())?;
    let no_generator = || fail(args, "it writes no texts".to_owned());
    let generator = model.text_generator().ok_or_else(no_generator)?;
    let arch = definition.arch();
    let [file, ..] = model_folder::find_tokenizer(&args.model, arch).unwrap_or(&[TOKENIZER_JSON]) else {
        return Err(fail(args, "it has no tokenizer".to_owned()));
    };
    let tokens = Tokens::whole(&args.model.join(file), arch)?;
    let limits = Generation {
        beams: i64::from(args.beams),
        temperature: args.temperature,
        top_p: args.top_p,
        seed: args.seed,
        end_token: tokens.end_token().map(i64::from),
        ..Generation::greedy(i64::from(args.tokens))
    };
    let text = match task_data {
        TaskData::Seq2Seq { vocab_size, .. } => {
            let tokens = tokens.check_vocabulary(vocab_size)?;
            let source = row(&tokens.encode(&args.prompt)?)?;
            let part = Part::default().with("attention_mask", source.f_ones_like()?).with("input_ids", source);
            let answer = generator.generate(&part, &limits)?.concat();
            tokens.decode(&answer)?
        }
        TaskData::Language { vocab_size, max_length, .. } => {
            let tokens = tokens.check_vocabulary(vocab_size)?;
            let prompt = beginning(&tokens, args, max_length)?;
            let rest = generator.generate(&Part::default().with("prompt", row(&prompt)?), &limits)?.concat();
            // Together, so that the space between the two is right.
            tokens.decode(&[prompt, rest].concat())?
        }
        TaskData::Classification { .. }
        | TaskData::Contrastive { .. }
        | TaskData::TimeSeries { .. }
        | TaskData::TokenLabels { .. }
        | TaskData::Preference { .. }
        | TaskData::Table { .. }
        | TaskData::PictureClasses { .. } => {
            return Err(no_generator());
        }
    };
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(TrainerError::Io { path: "stdout".into(), source: error })
        }
        _ => Ok(()),
    }
}

/// The tokens of the prompt; without one, the end of the text before.
fn beginning(tokens: &Tokens, args: &GenerateArgs, max_length: u32) -> Result<Vec<i64>, TrainerError> {
    let mut prompt: Vec<i64> = tokens.encode_plain(&args.prompt)?.into_iter().map(i64::from).collect();
    if prompt.is_empty() {
        prompt.extend(tokens.end_token().map(i64::from));
    }
    match prompt.len() {
        0 => Err(fail(args, "the prompt has no tokens; give some text".to_owned())),
        count if count >= max_length as usize => {
            Err(fail(args, format!("the prompt has {count} tokens, and texts have {max_length} at most")))
        }
        _ => Ok(prompt),
    }
}

/// [1, length]
fn row(tokens: &[i64]) -> Result<Tensor, TrainerError> {
    Ok(Tensor::f_from_slice(tokens)?.f_unsqueeze(0)?)
}

fn fail(args: &GenerateArgs, message: String) -> TrainerError {
    TrainerError::Model { path: args.model.clone(), message }
}
