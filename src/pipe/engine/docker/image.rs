//! The image that a run needs, built if need be.
//!
//! Building an image through the API: the context is streamed, the log comes back line by line.
//!
//! The files of an image, streamed out of the daemon into a folder.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use bollard::body_try_stream;
use bollard::models::{BuildInfo, ContainerCreateBody, ImageConfig as DaemonConfig};
use bollard::query_parameters::{BuildImageOptionsBuilder, ListContainersOptionsBuilder};
use bytes::{Buf, Bytes};
use futures_util::{StreamExt, stream};
use pipe_spec::pipeline::Image;
use pipe_spec::text::count;
use tokio::sync::mpsc;

use super::{DockerEngine, LABEL_EXPORT, LABEL_IMAGE, LIBRARY_PATH, failed, remove_container};
use crate::engine::{ImageStore, Launch, Progress};
use crate::error::Error;
use crate::image::{self, BuildWatcher, Context, Cuda, ImageBuild, ImageConfig, unpack};
use crate::system::{clock, interrupt};

impl DockerEngine {
    /// The name of the image that the pipeline wants, built if need be; the one that the run began with, where it is still
    /// there.
    pub(super) async fn ready_image(
        &self,
        image: Option<&Image>,
        first: Option<&str>,
        progress: &mut dyn Progress,
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
        let build = prepare_build(image).await?;
        self.ensure_image(&build, progress).await?;
        Ok(build.name)
    }

    /// The launch in the image that it was prepared with: by its id where its name means another one by now.
    pub(super) async fn in_its_image(&self, launch: &Launch) -> Result<Launch, Error> {
        let mut launch = launch.clone();
        if let (Some(name), Some(id)) = (&launch.image, &launch.image_id)
            && self.image_id(name).await?.as_ref() != Some(id)
        {
            if self.image_id(id).await?.is_none() {
                return Err(Error::ImageReplaced { image: name.clone() });
            }
            launch.image = Some(id.clone());
        }
        Ok(launch)
    }

    /// Where programs of an image look for libraries, if the image says so.
    pub(super) async fn library_path(&self, image: Option<&str>) -> Option<String> {
        let found = self.docker.inspect_image(image?).await.ok()?;
        let env = found.config?.env?;
        env.iter().find_map(|entry| entry.strip_prefix(LIBRARY_PATH)?.strip_prefix('=').map(str::to_owned))
    }

    /// The program of an image and its first arguments.
    pub(super) async fn entrypoint(&self, image: Option<&str>) -> Result<Vec<String>, Error> {
        let found = self.docker.inspect_image(image.unwrap_or_default()).await.map_err(failed)?;
        Ok(found.config.and_then(|config| config.entrypoint).unwrap_or_default())
    }

    /// Builds the image unless the daemon has it under the name that its content gives it. Returns whether it built.
    pub(super) async fn ensure_image(&self, build: &ImageBuild, progress: &mut dyn Progress) -> Result<bool, Error> {
        if self.image_id(&build.name).await?.is_some() {
            progress.note(&format!("image: {} (unchanged)", build.name));
            return Ok(false);
        }
        if let Cuda::Missing { folder, libraries } = &build.cuda {
            let what =
                format!("building an image without GPU support: {} missing", count(libraries.len(), "CUDA library"));
            progress.note(&format!("{what}; for GPU support {}", image::fetch_cuda(folder)));
        }
        let mut watcher = progress.image_build(&build.name, build.context.size());
        self.build(&build.name, &build.context, watcher.as_mut()).await?;
        drop(watcher);
        progress.note(&format!("image: {} (built)", build.name));
        Ok(true)
    }
}

/// Prepares the build of `image`. Runs in a thread of its own, so that signals are heard.
pub async fn prepare_build(image: Option<&Image>) -> Result<ImageBuild, Error> {
    let dockerfile = image::dockerfile(image).map(str::to_owned);
    interrupt::run(move || image::prepare_build(dockerfile.as_deref())).await
}

impl DockerEngine {
    pub(super) async fn build(
        &self,
        name: &str,
        context: &Context,
        watcher: &mut dyn BuildWatcher,
    ) -> Result<(), Error> {
        let labels = HashMap::from([(LABEL_IMAGE, context.hash())]);
        let options = BuildImageOptionsBuilder::new()
            .dockerfile(Context::DOCKERFILE)
            .t(name)
            .rm(true)
            .forcerm(true)
            .labels(&labels)
            .build();
        let (sender, mut receiver) = mpsc::channel(8);
        let (counter, mut counted) = mpsc::unbounded_channel();
        let sending = tokio::task::spawn_blocking({
            let context = context.clone();
            move || context.send(sender, counter)
        });
        let patient = self.docker.clone().with_timeout(std::time::Duration::from_secs(3600));
        let body = body_try_stream(stream::poll_fn(move |context| receiver.poll_recv(context)));
        let mut answers = std::pin::pin!(patient.build_image(options, None, Some(body)));
        let mut step = None;
        let result = loop {
            tokio::select! {
                Some(bytes) = counted.recv() => watcher.sent(bytes),
                answer = answers.next() => match answer {
                    None => break Ok(()),
                    Some(Ok(info)) => {
                        if let Err(message) = log(&info, &mut step, watcher) {
                            break Err(Error::ImageBuild { step, message });
                        }
                    }
                    Some(Err(bollard::errors::Error::DockerStreamError { error: message })) => {
                        break Err(Error::ImageBuild { step, message });
                    }
                    Some(Err(bollard::errors::Error::DockerResponseServerError { message, .. })) => {
                        break Err(Error::ImageBuild { step, message });
                    }
                    Some(Err(source)) => break Err(failed(source)),
                },
            }
        };
        // A context that cannot be read shows as a broken request, and its own error says more; but not where the engine took no more.
        match sending.await {
            Ok(Err(Error::Read { source, .. } | Error::Write { source, .. }))
                if result.is_err() && source.kind() == io::ErrorKind::BrokenPipe =>
            {
                result
            }
            Ok(Err(error)) => Err(error),
            _ => result,
        }
    }
}

/// Shows what the builder said and remembers the step it is at. An error of the builder's is returned.
fn log(info: &BuildInfo, step: &mut Option<String>, watcher: &mut dyn BuildWatcher) -> Result<(), String> {
    if let Some(detail) = &info.error_detail {
        return Err(detail.message.clone().unwrap_or_else(|| "the builder gave no reason".to_owned()));
    }
    for line in info.stream.iter().flat_map(|text| text.lines()).filter(|line| !line.trim().is_empty()) {
        // Docker's builder writes `Step 1/2 : RUN x`, Podman's `STEP 1/2: RUN x`.
        let docker = line.strip_prefix("Step ").and_then(|rest| rest.split_once(" : "));
        let podman = || line.strip_prefix("STEP ").and_then(|rest| rest.split_once(": "));
        if let Some((number, instruction)) = docker.or_else(podman) {
            *step = Some(format!("step {number} ({instruction})"));
        }
        watcher.line(line);
    }
    Ok(())
}

/// The daemon may take so long to begin with a large image.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3600);

/// A container for an export that is older was left by a `pipe` that was killed.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);

impl DockerEngine {
    pub(super) async fn export_image(&self, image: &str, folder: &Path) -> Result<ImageConfig, Error> {
        self.remove_left_exports().await?;
        let config = self.docker.inspect_image(image).await.map_err(failed)?.config.unwrap_or_default();
        // The daemon exports containers alone. This one never runs, but has to have a command.
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            cmd: Some(vec!["export".to_owned()]),
            labels: Some(HashMap::from([(LABEL_EXPORT.to_owned(), image.to_owned())])),
            ..ContainerCreateBody::default()
        };
        let id = self.docker.create_container(None, body).await.map_err(failed)?.id;
        let written = self.write_files(&id, folder).await;
        remove_container(&self.docker, &id).await?;
        written?;
        // Programs take it to mean that Docker runs them.
        std::fs::remove_file(folder.join(".dockerenv")).ok();
        Ok(config_of(config))
    }

    async fn write_files(&self, container: &str, folder: &Path) -> Result<(), Error> {
        let (sender, receiver) = mpsc::channel(8);
        let place = folder.to_owned();
        let unpacking = interrupt::run(move || {
            let archive = ChannelReader { from: receiver, chunk: Bytes::new() };
            unpack(archive, &place).map_err(|source| Error::Write { path: place, source })
        });
        let patient = self.docker.clone().with_timeout(EXPORT_TIMEOUT);
        let sending = async move {
            let mut chunks = std::pin::pin!(patient.export_container(container));
            while let Some(chunk) = chunks.next().await {
                let (chunk, error) = match chunk {
                    Ok(chunk) => (Ok(chunk), None),
                    Err(source) => (Err(io::Error::other("the export was cut off")), Some(source)),
                };
                let taken = sender.send(chunk).await.is_ok();
                if let Some(source) = error {
                    return Err(failed(source));
                }
                // Where the files could not be written, the error of that says so.
                if !taken {
                    break;
                }
            }
            Ok(())
        };
        let (sent, unpacked) = tokio::join!(sending, unpacking);
        sent.and(unpacked)
    }

    async fn remove_left_exports(&self) -> Result<(), Error> {
        let filters = HashMap::from([("label", vec![LABEL_EXPORT])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let oldest = clock::now() as i64 - LEFT_AFTER.as_secs() as i64;
        for container in self.docker.list_containers(Some(options)).await.map_err(failed)? {
            if let (Some(id), Some(created)) = (container.id, container.created)
                && created < oldest
            {
                remove_container(&self.docker, &id).await?;
            }
        }
        Ok(())
    }
}

fn config_of(config: DaemonConfig) -> ImageConfig {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let variable = |entry: String| {
        let (name, value) = entry.split_once('=').unwrap_or((&entry, ""));
        (name.to_owned(), value.to_owned())
    };
    ImageConfig {
        entrypoint: config.entrypoint.unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
        env: config.env.unwrap_or_default().into_iter().map(variable).collect(),
        work_folder: given(config.working_dir).map(Into::into),
        user: given(config.user),
    }
}

/// Reads what comes through a channel. Blocks.
struct ChannelReader {
    from: mpsc::Receiver<io::Result<Bytes>>,
    chunk: Bytes,
}

impl Read for ChannelReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.from.blocking_recv() {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let count = self.chunk.len().min(bytes.len());
        self.chunk.copy_to_slice(&mut bytes[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod export_tests {
    use super::*;

    #[test]
    fn what_an_image_says_of_its_containers() {
        let text = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>());
        let config = config_of(DaemonConfig {
            entrypoint: text(&["/tool", "-v"]),
            env: text(&["PATH=/bin", "OPTIONS=a=b", "EMPTY="]),
            working_dir: Some("/work".to_owned()),
            user: Some(String::new()),
            ..DaemonConfig::default()
        });
        let env = [("EMPTY", ""), ("OPTIONS", "a=b"), ("PATH", "/bin")];
        assert_eq!(config.env, env.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert_eq!((config.entrypoint.len(), config.cmd.len(), config.user), (2, 0, None));
        assert_eq!(config.work_folder.as_deref(), Some(Path::new("/work")));
    }
}
