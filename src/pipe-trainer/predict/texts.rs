//! Predictions of texts: for a source, as the continuation of a prompt, or the loss of each row. And
//! `pipe-trainer generate`: a trained model writes one text, on the CPU in fp32.

use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use pipe_model::TaskData;
use pipe_spec::PredictEvent;
use pipe_spec::model_folder::{self, TOKENIZER_JSON};
use pipe_spec::trainer::{Evaluation, Predicted};
use tch::{Kind, Reduction, Tensor};

use super::batches::{Field, Fields, Head, print};
use super::{Prediction, evaluation};
use crate::cli::GenerateArgs;
use crate::data::{
    self, Column, IGNORED, Padding, Part, PartShape, Pieces, Prompts, Sample, Source, TextPieces, has_prompts,
    open_questions,
};
use crate::error::TrainerError;
use crate::model::{Definition, Generation, Mode, Model, Setup, Start};
use crate::storage::TensorFiles;
use crate::tokenizer::Tokens;
use crate::train::{TextScores, generation};

/// Models that write a text for a text.
pub fn predict_texts(prediction: &mut Prediction, task_data: &TaskData) -> Result<Predicted, TrainerError> {
    let (sources, shape) = prediction.open(task_data)?;
    let Some(tokens) = sources.tokens else { panic!("texts without a tokenizer") };
    let mut head = TextHead {
        limits: generation(&prediction.spec.settings, &tokens),
        model: Rc::clone(&prediction.model),
        source: Arc::clone(&sources.train),
        shape,
        tokens,
        loss: 0.0,
        targets: 0,
        rows: 0,
        scores: TextScores::default(),
    };
    let predicted = prediction.write(&sources.train, &mut head)?;
    let loss = head.loss / head.targets.max(1) as f64;
    Ok(Predicted { evaluation: evaluation(head.rows, loss, head.scores.scores(loss)), ..predicted })
}

struct TextHead {
    model: Rc<dyn Model>,
    source: Arc<dyn Source>,
    shape: PartShape,
    tokens: Arc<Tokens>,
    limits: Generation,
    /// Summed over the target tokens.
    loss: f64,
    targets: u64,
    /// Rows with a target.
    rows: u64,
    scores: TextScores,
}

impl Head for TextHead {
    type Output = Fields;

    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<Fields>, TrainerError> {
        let Some(generator) = self.model.text_generator() else { panic!("a model that writes no texts") };
        let answers = generator.generate(&self.shape.collate(samples)?, &self.limits)?;
        let texts = answers.iter().map(|answer| self.tokens.decode(answer)).collect::<Result<Vec<_>, _>>()?;
        let wanted = indices.iter().zip(samples).map(|(index, sample)| self.target(*index, sample));
        let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        let (loss, targets) = self.loss_sum(samples)?;
        (self.loss, self.targets) = (self.loss + loss, self.targets + targets);
        let mut all = Vec::with_capacity(texts.len());
        for (text, wanted) in texts.into_iter().zip(wanted) {
            if let Some(wanted) = &wanted {
                self.rows += 1;
                self.scores.add(wanted, &text);
            }
            let expected = wanted.map(|wanted| ("expected", Field::Text(wanted)));
            all.push([("text", Field::Text(text))].into_iter().chain(expected).collect());
        }
        Ok(all)
    }

    fn fields(mut pieces: Vec<Fields>) -> Fields {
        pieces.swap_remove(0)
    }
}

impl TextHead {
    fn target(&self, index: usize, sample: &Sample) -> Result<Option<String>, TrainerError> {
        match sample.targets {
            0 => Ok(None),
            _ => self.source.reference_texts(index).map(|(_, target)| Some(target)),
        }
    }

    /// The loss of those that have a target, and how many tokens these are.
    fn loss_sum(&self, samples: &[Sample]) -> Result<(f64, u64), TrainerError> {
        let samples: Vec<Sample> = samples.iter().filter(|sample| sample.targets > 0).cloned().collect();
        if samples.is_empty() {
            return Ok((0.0, 0));
        }
        let sum = self.model.loss_sum(&self.shape.collate(&samples)?, Mode::Eval)?;
        let targets = samples.iter().map(|sample| sample.targets).sum();
        Ok((sum.f_to_kind(Kind::Double)?.f_double_value(&[])?, targets))
    }
}

/// Language models: the continuation of prompts, or the loss of texts.
pub fn predict_language(
    prediction: &mut Prediction,
    task_data: &TaskData,
    vocab_size: u64,
    pieces: Pieces,
) -> Result<Predicted, TrainerError> {
    let spec = prediction.spec.settings.clone();
    let missing = || TrainerError::Tokenizer { path: "".into(), message: "none is given".to_owned() };
    let tokenizer = spec.tokenizer.as_deref().ok_or_else(missing)?;
    let tokens = Arc::new(Tokens::whole(tokenizer, spec.model.arch)?.check_vocabulary(vocab_size)?);
    let (device, model) = (prediction.hardware.device, Rc::clone(&prediction.model));
    let has_questions = spec.data.is_chat();
    if has_questions || has_prompts(&spec.data)? {
        let source: Arc<dyn Source> = match has_questions {
            true => {
                let (source, notices) = open_questions(&spec, &prediction.pool, &tokens, pieces.longest)?;
                notices.into_iter().for_each(|message| print(&PredictEvent::Warning { message }));
                source
            }
            false => Arc::new(Prompts::open(&spec.data, &prediction.pool, Arc::clone(&tokens), pieces.longest)?),
        };
        let limits = generation(&spec, &tokens);
        return prediction.write(&source, &mut PromptHead { model, tokens, limits, device });
    }
    let pieces = Pieces { longest: pieces.longest.min(spec.data.max_length.get() as usize), ..pieces };
    let source = TextPieces::open(&spec.data.train.0, &spec.data, &prediction.pool, &tokens, pieces)?;
    let predicted = prediction.write(&(Arc::new(source) as Arc<dyn Source>), &mut LossHead { model, device })?;
    let evaluation = prediction.packed_figures(task_data, predicted.predictions)?;
    Ok(Predicted { evaluation, ..predicted })
}

impl Prediction {
    /// The figures of an evaluation, which packs the texts into rows of one length; nothing where they do not fill one.
    fn packed_figures(&mut self, task_data: &TaskData, rows: u64) -> Result<Option<Evaluation>, TrainerError> {
        // Every text was read before: all that can be wrong here is that there are too few.
        let Ok(sources) = data::open(&self.spec.settings, task_data, &self.pool) else { return Ok(None) };
        let shape = PartShape::new(&sources.paddings, self.hardware.device);
        let mut head = PackedHead { model: Rc::clone(&self.model), shape, loss: 0.0, targets: 0 };
        self.batches.run(&sources.train, &mut head, |_| {}, |_| Ok(()))?;
        let loss = head.loss / head.targets.max(1) as f64;
        Ok(evaluation(rows, loss, TextScores::default().scores(loss)))
    }
}

struct PromptHead {
    model: Rc<dyn Model>,
    tokens: Arc<Tokens>,
    limits: Generation,
    device: tch::Device,
}

impl Head for PromptHead {
    type Output = String;

    /// Prompts of one length are continued together. Where tokens are drawn, the number of a row decides them, so that rows
    /// that are continued together must follow one another.
    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<String>, TrainerError> {
        let Some(generator) = self.model.text_generator() else { panic!("a model that writes no texts") };
        let goes_on = |at: usize| {
            let follows = self.limits.temperature == 0.0 || indices[at] == indices[at - 1] + 1;
            follows && samples[at].length() == samples[at - 1].length()
        };
        let mut texts = Vec::with_capacity(samples.len());
        while texts.len() < samples.len() {
            let start = texts.len();
            let end = (start + 1..samples.len()).find(|at| !goes_on(*at)).unwrap_or(samples.len());
            let length = Some(samples[start].length());
            let shape = PartShape::new(&[Padding { column: "prompt", with: 0, length, most: usize::MAX }], self.device);
            let limits = Generation { first_row: indices[start] as u64, ..self.limits };
            let answers = generator.generate(&shape.collate(&samples[start..end])?, &limits)?;
            for (sample, answer) in samples[start..end].iter().zip(answers) {
                texts.push(self.continuation(sample, &answer)?);
            }
        }
        Ok(texts)
    }

    fn fields(mut pieces: Vec<String>) -> Fields {
        vec![("text", Field::Text(pieces.swap_remove(0)))]
    }
}

impl PromptHead {
    /// Written out together with its prompt where that is possible, so that a space between the two is kept.
    fn continuation(&self, sample: &Sample, answer: &[i64]) -> Result<String, TrainerError> {
        let Some(Column::Tokens(prompt)) = sample.column("prompt") else { return self.tokens.decode(answer) };
        let (whole, before) = (self.tokens.decode(&[prompt, answer].concat())?, self.tokens.decode(prompt)?);
        match whole.strip_prefix(&before) {
            Some(rest) => Ok(rest.to_owned()),
            None => self.tokens.decode(answer),
        }
    }
}

struct LossHead {
    model: Rc<dyn Model>,
    device: tch::Device,
}

impl Head for LossHead {
    /// The loss, summed over so many tokens.
    type Output = (f64, u64);

    const JOINED: bool = true;

    fn compute(&mut self, _: &[usize], samples: &[Sample]) -> Result<Vec<(f64, u64)>, TrainerError> {
        // Rows are never rounded up: there may be no position for more.
        let length = samples.iter().map(Sample::length).max();
        let padding = |column, with| Padding { column, with, length, most: usize::MAX };
        let part = PartShape::new(&[padding("ids", 0), padding("next", IGNORED)], self.device).collate(samples)?;
        let logits = self.model.logits(&part, Mode::Eval)?.f_to_kind(Kind::Float)?;
        let next = part.get("next")?;
        let (rows, length) = next.size2()?;
        let losses = logits.f_reshape([rows * length, -1])?.f_cross_entropy_loss(
            &next.f_reshape([-1])?,
            None::<&Tensor>,
            Reduction::None,
            IGNORED,
            0.0,
        )?;
        let sums = losses.f_reshape([rows, length])?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)?;
        Ok(Vec::<f64>::try_from(sums)?.into_iter().zip(samples).map(|(sum, sample)| (sum, sample.targets)).collect())
    }

    fn fields(pieces: Vec<(f64, u64)>) -> Fields {
        let tokens: u64 = pieces.iter().map(|(_, tokens)| tokens).sum();
        let loss = pieces.iter().map(|(sum, _)| sum).sum::<f64>() / tokens.max(1) as f64;
        vec![("loss", Field::Mean(loss)), ("perplexity", Field::Mean(loss.exp())), ("tokens", Field::Whole(tokens))]
    }
}

/// Rows as an evaluation has them.
struct PackedHead {
    model: Rc<dyn Model>,
    shape: PartShape,
    loss: f64,
    targets: u64,
}

impl Head for PackedHead {
    type Output = ();

    fn compute(&mut self, _: &[usize], samples: &[Sample]) -> Result<Vec<()>, TrainerError> {
        let sum = self.model.loss_sum(&self.shape.collate(samples)?, Mode::Eval)?;
        self.loss += sum.f_to_kind(Kind::Double)?.f_double_value(&[])?;
        self.targets += samples.iter().map(|sample| sample.targets).sum::<u64>();
        Ok(vec![(); samples.len()])
    }

    fn fields(_: Vec<()>) -> Fields {
        Vec::new()
    }
}

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
