//! The files of an image, streamed out of the daemon into a folder.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, ImageConfig as DaemonConfig};
use bollard::query_parameters::ListContainersOptionsBuilder;
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::container::unix_now;
use super::{DockerEngine, LABEL_EXPORT, failed, remove_container};
use crate::background;
use crate::error::Error;
use crate::image::{ImageConfig, unpack};

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
        let unpacking = background::run(move || {
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
        let oldest = unix_now().saturating_sub(LEFT_AFTER.as_secs()) as i64;
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
mod tests {
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
