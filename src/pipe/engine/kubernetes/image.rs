//! The image of a job: which one nodes pull, or have.

use pipe_spec::pipeline::Image;

use super::section::Pods;
use crate::engine::{ConnectImages, Progress};
use crate::error::Error;
use crate::image::{ImageBuild, has_tag, name_in};
use crate::system::interrupt;

/// The name by which nodes know the image. Builds nothing.
pub async fn name(settings: &Pods, image: Option<&Image>) -> Result<String, Error> {
    match (image, &settings.image) {
        (Some(Image::Existing(name)), _) => Ok(name.clone()),
        (None, Some(named)) if has_tag(named) => Ok(named.clone()),
        (image, _) => Ok(named(settings, &prepare_build(image).await?)),
    }
}

/// The same, and builds the image where there is a container engine here and no registry is named: the nodes may be of this machine.
pub async fn prepare(
    settings: &Pods,
    images: ConnectImages,
    image: Option<&Image>,
    progress: &mut dyn Progress,
) -> Result<String, Error> {
    let is_built = match (image, &settings.image) {
        (Some(Image::Existing(_)), _) => false,
        (None, Some(named)) => !has_tag(named),
        _ => true,
    };
    if !is_built {
        return name(settings, image).await;
    }
    let build = prepare_build(image).await?;
    let name = named(settings, &build);
    if settings.image.is_some() {
        let name = with_digest(name, images).await;
        progress.note(&format!("image: {name} (pulled by the nodes)"));
        return Ok(name);
    }
    match images().await {
        Ok(engine) => {
            if let Some(store) = engine.images() {
                store.ensure(&build, progress).await?;
            }
        }
        Err(Error::NoEngine { .. }) => progress.note(&format!("image: {name} (the nodes must have it)")),
        Err(error) => return Err(error),
    }
    Ok(name)
}

/// The name of a build in the registry of the pipeline.
fn named(settings: &Pods, build: &ImageBuild) -> String {
    settings.image.as_ref().map_or_else(|| build.name.clone(), |repository| name_in(repository, &build.name))
}

/// By its digest an image that was pushed from this machine, which no other one can take the place of.
async fn with_digest(name: String, images: ConnectImages) -> String {
    let Ok(engine) = images().await else { return name };
    let Some(store) = engine.images().filter(|_| !name.contains('@')) else { return name };
    match (store.digest(&name).await, name.rsplit_once(':')) {
        (Ok(Some(digest)), Some((repository, _))) => format!("{repository}@{digest}"),
        _ => name,
    }
}

/// Runs in a thread of its own, so that signals are heard.
async fn prepare_build(image: Option<&Image>) -> Result<ImageBuild, Error> {
    let path = match image {
        Some(Image::Dockerfile(path)) => Some(path.clone()),
        Some(Image::Existing(_)) | None => None,
    };
    interrupt::run(move || crate::image::prepare_build(path.as_deref())).await
}
