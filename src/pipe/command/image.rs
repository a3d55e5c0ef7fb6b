//! `pipe image`: building the trainer image, or one of the user's own, and listing what was built.

use std::path::Path;

use pipe_spec::text::human_bytes;
use serde_json::json;

use crate::drive::image::ensure;
use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::image;
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
