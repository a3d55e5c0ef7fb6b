//! The image of a job: which one nodes pull, or have.

use pipe_spec::pipeline::Image;

use super::section::Pods;
use crate::engine::{ConnectImages, Progress};
use crate::error::Error;
use crate::image::{self, ImageBuild};
use crate::system::interrupt;

/// The name by which nodes know the image. Builds nothing.
pub async fn name(settings: &Pods, image: Option<&Image>) -> Result<String, Error> {
    match (image, &settings.image) {
        (Some(Image::Existing(name)), _) => Ok(name.clone()),
        (None, Some(named)) if is_complete(named) => Ok(named.clone()),
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
        (None, Some(named)) => !is_complete(named),
        _ => true,
    };
    if !is_built {
        return name(settings, image).await;
    }
    let build = prepare_build(image).await?;
    let name = named(settings, &build);
    if settings.image.is_some() {
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
    let Some(repository) = &settings.image else { return build.name.clone() };
    if is_complete(repository) {
        return repository.clone();
    }
    let tag = build.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    format!("{repository}:{tag}")
}

/// Whether a name has a tag or a digest. A colon before a slash is that of a port.
fn is_complete(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or_default();
    name.contains('@') || last.contains(':')
}

/// Runs in a thread of its own, so that signals are heard.
async fn prepare_build(image: Option<&Image>) -> Result<ImageBuild, Error> {
    let path = match image {
        Some(Image::Dockerfile(path)) => Some(path.clone()),
        Some(Image::Existing(_)) | None => None,
    };
    interrupt::run(move || image::prepare_build(path.as_deref())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_tag_are_used_as_they_are() {
        for (name, want) in [
            ("registry.lab/pipe", false),
            ("registry.lab:5000/pipe", false),
            ("registry.lab:5000/pipe:1", true),
            ("pipe@sha256:0", true),
        ] {
            assert_eq!(is_complete(name), want, "{name}");
        }
    }
}
