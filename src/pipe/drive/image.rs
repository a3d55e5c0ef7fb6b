//! The image that a run needs, built if need be.

use pipe_spec::pipeline::{Image, Pipeline};
use serde_json::Value;

use crate::engine::docker::DockerEngine;
use crate::error::{Error, fetch_cuda};
use crate::image::{self, Cuda, Recipe};
use crate::report::Reporter;

/// The name of the image that the pipeline wants, built if need be; the one that the run began with, where it is still there.
pub async fn ready(
    engine: &DockerEngine,
    pipeline: &Pipeline,
    reporter: &mut Reporter,
    first: Option<String>,
) -> Result<String, Error> {
    if let Some(first) = first
        && engine.image_id(&first).await?.is_some()
    {
        return Ok(first);
    }
    if let Some(Image::Pinned(name)) = &pipeline.container.image {
        return match engine.image_id(name).await? {
            Some(_) => Ok(name.clone()),
            None => Err(Error::NoImage { image: name.clone() }),
        };
    }
    let recipe = image::recipe(image::dockerfile(pipeline.container.image.as_ref()))?;
    ensure(engine, &recipe, reporter).await?;
    Ok(recipe.name)
}

/// What the job's program is known by: the image, or without one the trainer's content.
pub fn word(on: &Value) -> Result<String, Error> {
    match on.get("image").and_then(Value::as_str) {
        Some(image) => Ok(image.to_owned()),
        None => Ok(format!("process:{}", &image::trainer_digest()?[..16])),
    }
}

/// Builds the image unless the engine has it under the name that its content gives it. Tells whether it built.
pub async fn ensure(engine: &DockerEngine, recipe: &Recipe, reporter: &mut Reporter) -> Result<bool, Error> {
    if engine.image_id(&recipe.name).await?.is_some() {
        reporter.note(&format!("image: {} (unchanged)", recipe.name));
        return Ok(false);
    }
    if let Cuda::Missing { folder, libraries } = &recipe.cuda {
        let what = format!("an image for the CPU alone, because {} CUDA libraries are missing", libraries.len());
        reporter.note(&format!("{what}; for cards {}", fetch_cuda(folder)));
    }
    let mut progress = reporter.image_progress(&recipe.name, recipe.context.size());
    engine.build(&recipe.name, &recipe.context, &mut progress).await?;
    drop(progress);
    reporter.note(&format!("image: {} (built)", recipe.name));
    Ok(true)
}
