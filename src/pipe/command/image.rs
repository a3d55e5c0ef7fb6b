//! `pipe image`: building the trainer image, or one of the user's own, and listing what was built.

use std::path::Path;

use pipe_spec::text::human_bytes;
use serde_json::json;

use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::image::{self, Recipe};
use crate::interrupt::Interrupts;
use crate::report::{Reporter, Table, print, print_json};

pub fn build(dockerfile: Option<&Path>, json: bool, quiet: bool) -> Result<(), Error> {
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let engine = DockerEngine::connect().await?;
        let path = dockerfile.map(|path| path.to_string_lossy().into_owned());
        let recipe = image::recipe(path.as_deref())?;
        let mut reporter = Reporter::new(json, quiet);
        let built = tokio::select! {
            built = ensure(&engine, &recipe, &mut reporter) => built?,
            () = interrupts.next() => return Err(Error::Interrupted),
        };
        if json {
            let id = engine.image_id(&recipe.name).await?;
            print_json(&json!({ "image": recipe.name, "id": id, "hash": recipe.context.hash(), "built": built }));
        } else {
            print(&recipe.name);
        }
        Ok(())
    })
}

/// Builds the image unless the engine has it under the name that its content gives it. Tells whether it built.
pub async fn ensure(engine: &DockerEngine, recipe: &Recipe, reporter: &mut Reporter) -> Result<bool, Error> {
    if engine.image_id(&recipe.name).await?.is_some() {
        reporter.note(&format!("image: {} (unchanged)", recipe.name));
        return Ok(false);
    }
    let mut progress = reporter.image_progress(&recipe.name, recipe.context.size());
    engine.build(&recipe.name, &recipe.context, &mut progress).await?;
    drop(progress);
    reporter.note(&format!("image: {} (built)", recipe.name));
    Ok(true)
}

pub fn ls(json: bool) -> Result<(), Error> {
    let images = super::runtime()?.block_on(async { DockerEngine::connect().await?.images().await })?;
    if json {
        print_json(&images);
        return Ok(());
    }
    let mut table = Table::new(&["image", "id", "size"]);
    for image in images {
        let id = image.id.trim_start_matches("sha256:").chars().take(12).collect();
        table.row(vec![image.name, id, human_bytes(u64::try_from(image.size).unwrap_or(0))]);
    }
    print(&table.to_string());
    Ok(())
}
