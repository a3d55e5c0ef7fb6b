//! `pipe image`: builds the trainer image, or one of the user's own, pushes it to a registry, lists its files, and lists the images that were built.

use std::path::{Path, PathBuf};

use pipe_spec::text::human_bytes;
use serde_json::json;

use crate::engine::{Engine, ImageStore, registry};
use crate::error::Error;
use crate::image::{self, Cuda, ImageBuild, fetch_cuda};
use crate::input::load;
use crate::report::{Output, Reporter, Table, print, print_json};
use crate::system::interrupt::{self, Interrupts};

pub fn build(dockerfile: Option<&Path>, output: Output) -> Result<(), Error> {
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let engine = registry::connect_for_images().await?;
        let images = image_store(engine.as_ref())?;
        let path = dockerfile.map(|path| path.to_string_lossy().into_owned());
        let mut reporter = Reporter::new(output);
        let (build, built) = ensure(images, path, &mut reporter, &mut interrupts).await?;
        if output.is_json() {
            let id = images.image_id(&build.name).await?;
            print_json(&json!({ "image": build.name, "id": id, "hash": build.context.hash(), "built": built }));
        } else {
            print(&build.name);
        }
        Ok(())
    })
}

/// Prepares the build of a Dockerfile, and builds unless the image is there.
async fn ensure(
    images: &dyn ImageStore,
    dockerfile: Option<String>,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(ImageBuild, bool), Error> {
    let build = interrupt::run_interruptibly(interrupts, move || image::prepare_build(dockerfile.as_deref())).await?;
    let built = tokio::select! {
        built = images.ensure(&build, reporter) => built?,
        _ = interrupts.next() => return Err(Error::Interrupted),
    };
    Ok((build, built))
}

/// Sends the image of a pipeline, or of the trainer, to a registry.
pub fn push(repository: Option<String>, pipeline: Option<&Path>, output: Output) -> Result<(), Error> {
    let parsed = pipeline.map(|file| load::parse(file, &[])).transpose()?;
    let pipeline = parsed.as_ref().map(|parsed| &parsed.pipeline);
    let repository = repository.or_else(|| registry::repository(pipeline?)).filter(|name| !name.contains('@'));
    let repository = repository.ok_or(Error::NoRepository)?;
    let image = pipeline.and_then(|pipeline| image::dockerfile(pipeline.container.image.as_ref())).map(str::to_owned);
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let engine = registry::connect_for_images().await?;
        let images = image_store(engine.as_ref())?;
        let mut reporter = Reporter::new(output);
        let (build, _) = ensure(images, image, &mut reporter, &mut interrupts).await?;
        let target = image::name_in(&repository, &build.name);
        let digest = tokio::select! {
            digest = images.push(&build.name, &target, &mut reporter) => digest?,
            _ = interrupts.next() => return Err(Error::Interrupted),
        };
        let pushed = format!("{}@{digest}", target.rsplit_once(':').map_or(target.as_str(), |(name, _)| name));
        match output.is_json() {
            true => print_json(&json!({ "image": pushed, "name": target, "digest": digest })),
            false => print(&pushed),
        }
        Ok(())
    })
}

/// Lists the files of the trainer image: where each lies in it and where it comes from.
pub fn files(json: bool) -> Result<(), Error> {
    let staged = image::stage()?;
    let in_image = |name: &str| match name.strip_prefix("pipe/system") {
        Some(path) => path.to_owned(),
        None => format!("/opt/{name}"),
    };
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    if json {
        let file =
            |(name, path): (&String, &PathBuf)| json!({ "path": in_image(name), "from": path, "size": size(path) });
        let missing = if let Cuda::Missing { libraries, .. } = staged.cuda { libraries } else { Vec::new() };
        print_json(&json!({ "files": staged.files.iter().map(file).collect::<Vec<_>>(), "missing": missing }));
        return Ok(());
    }
    let mut table = Table::new(&["in the image", "size", "from"]);
    for (name, path) in &staged.files {
        table.row(vec![in_image(name), human_bytes(size(path)), path.display().to_string()]);
    }
    print(&table.on_stdout());
    if let Cuda::Missing { folder, libraries } = staged.cuda {
        print(&format!("CPU only; missing: {}", libraries.join(", ")));
        print(&format!("hint: {}", fetch_cuda(&folder)));
    }
    Ok(())
}

pub fn ls(json: bool) -> Result<(), Error> {
    let images = super::runtime()?.block_on(async {
        let engine = registry::connect_for_images().await?;
        image_store(engine.as_ref())?.built_images().await
    })?;
    if json {
        print_json(&images);
        return Ok(());
    }
    let mut table = Table::new(&["image", "id", "size"]);
    for image in images {
        let id = image.id.trim_start_matches("sha256:").chars().take(12).collect();
        table.row(vec![image.name, id, human_bytes(u64::try_from(image.size).unwrap_or(0))]);
    }
    print(&table.on_stdout());
    Ok(())
}

pub fn image_store(engine: &dyn Engine) -> Result<&dyn ImageStore, Error> {
    let reason = || format!("the engine {} has no images", engine.name());
    engine.images().ok_or_else(|| Error::NoEngine { reason: reason(), hint: String::new() })
}
