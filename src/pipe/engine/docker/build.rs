//! Building an image through the API: the context is streamed, the log comes back line by line.

use std::collections::HashMap;

use bollard::query_parameters::BuildImageOptionsBuilder;
use bollard::{body_try_stream, models::BuildInfo};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{DockerEngine, LABEL_IMAGE, failed};
use crate::error::Error;
use crate::image::{BuildWatcher, Context};

impl DockerEngine {
    pub(super) async fn build(
        &self,
        name: &str,
        context: &Context,
        watcher: &mut impl BuildWatcher,
    ) -> Result<(), Error> {
        let labels = HashMap::from([(LABEL_IMAGE, context.hash())]);
        let options = BuildImageOptionsBuilder::new()
            .dockerfile(Context::DOCKERFILE)
            .t(name)
            .rm(true)
            .forcerm(true)
            .labels(&labels)
            .build();
        let (sender, receiver) = mpsc::channel(8);
        let (counter, mut counted) = mpsc::unbounded_channel();
        let sending = tokio::task::spawn_blocking({
            let context = context.clone();
            move || context.send(sender, counter)
        });
        let patient = self.docker.clone().with_timeout(std::time::Duration::from_secs(3600));
        let body = body_try_stream(ReceiverStream::new(receiver));
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
        // A context that cannot be read shows as a broken request; its own error says more.
        match sending.await {
            Ok(Err(error)) if result.is_err() => Err(error),
            _ => result,
        }
    }
}

/// Shows what the builder said and remembers the step it is at. An error of the builder's is returned.
fn log(info: &BuildInfo, step: &mut Option<String>, watcher: &mut impl BuildWatcher) -> Result<(), String> {
    if let Some(detail) = &info.error_detail {
        return Err(detail.message.clone().unwrap_or_else(|| "the builder gave no reason".to_owned()));
    }
    for line in info.stream.iter().flat_map(|text| text.lines()).filter(|line| !line.trim().is_empty()) {
        if let Some((number, instruction)) = line.strip_prefix("Step ").and_then(|rest| rest.split_once(" : ")) {
            *step = Some(format!("step {number} ({instruction})"));
        }
        watcher.line(line);
    }
    Ok(())
}
