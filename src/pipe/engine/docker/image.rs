//! The image that a run needs, built if need be.

use pipe_spec::pipeline::Image;
use pipe_spec::text::count;

use super::{DockerEngine, LIBRARY_PATH};
use crate::background;
use crate::engine::ImageStore;
use crate::error::{Error, fetch_cuda};
use crate::image::{self, Cuda, Recipe};
use crate::report::Reporter;

impl DockerEngine {
    /// The name of the image that the pipeline wants, built if need be; the one that the run began with, where it is still
    /// there.
    pub(super) async fn ready_image(
        &self,
        image: Option<&Image>,
        first: Option<&str>,
        reporter: &mut Reporter,
    ) -> Result<String, Error> {
        if let Some(first) = first
            && self.image_id(first).await?.is_some()
        {
            return Ok(first.to_owned());
        }
        if let Some(Image::Existing(name)) = image {
            return match self.image_id(name).await? {
                Some(_) => Ok(name.clone()),
                None => Err(Error::NoImage { image: name.clone() }),
            };
        }
        let recipe = recipe(image).await?;
        self.ensure_image(&recipe, reporter).await?;
        Ok(recipe.name)
    }

    /// Where programs of an image look for libraries, if the image says so.
    pub(super) async fn library_path(&self, image: Option<&str>) -> Option<String> {
        let found = self.docker.inspect_image(image?).await.ok()?;
        let env = found.config?.env?;
        env.iter().find_map(|entry| entry.strip_prefix(LIBRARY_PATH)?.strip_prefix('=').map(str::to_owned))
    }

    /// Builds the image unless the daemon has it under the name that its content gives it. Returns whether it built.
    pub(super) async fn ensure_image(&self, recipe: &Recipe, reporter: &mut Reporter) -> Result<bool, Error> {
        if self.image_id(&recipe.name).await?.is_some() {
            reporter.note(&format!("image: {} (unchanged)", recipe.name));
            return Ok(false);
        }
        if let Cuda::Missing { folder, libraries } = &recipe.cuda {
            let what =
                format!("building an image without GPU support: {} missing", count(libraries.len(), "CUDA library"));
            reporter.note(&format!("{what}; for GPU support {}", fetch_cuda(folder)));
        }
        let mut progress = reporter.image_progress(&recipe.name, recipe.context.size());
        self.build(&recipe.name, &recipe.context, &mut progress).await?;
        drop(progress);
        reporter.note(&format!("image: {} (built)", recipe.name));
        Ok(true)
    }
}

/// What has to be built for `image`. Runs in a thread of its own, so that signals are heard.
pub async fn recipe(image: Option<&Image>) -> Result<Recipe, Error> {
    let dockerfile = image::dockerfile(image).map(str::to_owned);
    background::run(move || image::recipe(dockerfile.as_deref())).await
}
