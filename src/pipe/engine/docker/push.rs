//! Sends an image to a registry, with the credentials that `docker login` has left.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use bollard::models::PushImageInfo;
use bollard::query_parameters::{PushImageOptionsBuilder, TagImageOptionsBuilder};
use futures_util::StreamExt;
use pipe_spec::text::count;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use super::{DockerEngine, failed};
use crate::engine::Progress;
use crate::error::Error;

/// How long the daemon may be silent while it sends a layer.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// How the config file of Docker names its hub.
const HUB: &str = "https://index.docker.io/v1/";

impl DockerEngine {
    /// Sends the image `name` as `target`, which has a tag. Returns its digest.
    pub(super) async fn push_image(
        &self,
        name: &str,
        target: &str,
        progress: &mut dyn Progress,
    ) -> Result<String, Error> {
        let (repository, tag) = target.rsplit_once(':').unwrap_or((target, "latest"));
        let refused = |message: String| refusal(target, repository, message);
        let credentials = credentials(registry_of(repository)).await.map_err(refused)?;
        let found = self.docker.inspect_image(name).await.map_err(failed)?;
        let to = TagImageOptionsBuilder::new().repo(repository).tag(tag).build();
        self.docker.tag_image(name, Some(to)).await.map_err(failed)?;
        let size = found.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        let mut sent = Sent::default();
        let patient = self.docker.clone().with_timeout(TIMEOUT);
        {
            let mut watcher = progress.image_push(target, size);
            let options = PushImageOptionsBuilder::new().tag(tag).build();
            let mut answers = std::pin::pin!(patient.push_image(repository, Some(options), credentials));
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(info) => watcher.sent(sent.take(&info)),
                    Err(bollard::errors::Error::DockerStreamError { error: message })
                    | Err(bollard::errors::Error::DockerResponseServerError { message, .. }) => {
                        return Err(refused(message));
                    }
                    Err(source) => return Err(failed(source)),
                }
            }
        }
        let Sent { layers, present, digest, .. } = sent;
        let digest = match digest {
            Some(digest) => digest,
            None => self.digest_of(target).await?.ok_or_else(|| refused("the registry gave no digest".to_owned()))?,
        };
        progress.note(&format!("sent {}; {present} were there", count(layers, "layer")));
        Ok(digest)
    }

    /// The digest that a registry has given an image which was pushed to it, or pulled from it.
    pub(super) async fn digest_of(&self, name: &str) -> Result<Option<String>, Error> {
        let found = match self.docker.inspect_image(name).await {
            Ok(found) => found,
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let repository = name.rsplit_once(':').map_or(name, |(repository, _)| repository);
        let named = found.repo_digests.unwrap_or_default();
        let own = named.iter().filter_map(|named| named.split_once('@')).find(|(name, _)| *name == repository);
        Ok(own.map(|(_, digest)| digest.to_owned()))
    }
}

fn refusal(target: &str, repository: &str, message: String) -> Error {
    let registry = registry_of(repository);
    let is_login = ["unauthorized", "denied", "no basic auth", HELPER, "authentication", "incorrect username"]
        .iter()
        .any(|words| message.contains(words));
    let hint = match is_login {
        true => format!("log in with an account that may push there: docker login {registry}"),
        false => "is the registry running, and does the daemon trust it?".to_owned(),
    };
    Error::ImagePush { image: target.to_owned(), message: message.trim().to_owned(), hint }
}

/// The answers to a push so far.
#[derive(Default)]
struct Sent {
    /// Bytes of each layer, by its size: the daemon's answers name no layer.
    bytes: HashMap<i64, i64>,
    layers: usize,
    present: usize,
    digest: Option<String>,
}

impl Sent {
    /// Takes an answer; how many bytes are new.
    fn take(&mut self, info: &PushImageInfo) -> u64 {
        let status = info.status.as_deref().unwrap_or_default();
        match status {
            "Pushed" => self.layers += 1,
            "Layer already exists" => self.present += 1,
            _ => {}
        }
        if let Some((_, rest)) = status.split_once("digest: ") {
            self.digest = rest.split_whitespace().next().map(str::to_owned);
        }
        let Some(detail) = info.progress_detail.as_ref().filter(|_| status == "Pushing") else { return 0 };
        let (current, total) = (detail.current.unwrap_or(0), detail.total.unwrap_or(0));
        let before = self.bytes.insert(total, current).unwrap_or(0);
        u64::try_from(current - before).unwrap_or(0)
    }
}

/// The registry of a repository: its first part, where that is the name of a machine.
fn registry_of(repository: &str) -> &str {
    match repository.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => HUB,
    }
}

/// The config file of Docker, as far as it is about registries.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auths: HashMap<String, Login>,
    #[serde(rename = "credHelpers")]
    helpers: HashMap<String, String>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Login {
    auth: Option<String>,
    identitytoken: Option<String>,
}

impl Login {
    fn credentials(&self, registry: &str) -> Option<DockerCredentials> {
        let decoded = STANDARD.decode(self.auth.as_deref().unwrap_or_default()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (username, password) = text.split_once(':').unwrap_or_default();
        let token = self.identitytoken.clone().filter(|token| !token.is_empty());
        (token.is_some() || !username.is_empty()).then(|| DockerCredentials {
            username: Some(username.to_owned()),
            password: Some(password.trim_end_matches('\0').to_owned()),
            identitytoken: token,
            serveraddress: Some(registry.to_owned()),
            ..DockerCredentials::default()
        })
    }
}

/// Nothing where the user has not logged in to the registry, or the error of a helper program.
async fn credentials(registry: &str) -> Result<Option<DockerCredentials>, String> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    let Some(path) = folder.or_else(home).map(|folder| folder.join("config.json")) else { return Ok(None) };
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let config: Config = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let login = config.auths.get(registry).or_else(|| config.auths.get(&format!("https://{registry}")));
    match config.helpers.get(registry).or(config.store.as_ref()) {
        Some(helper) => from_helper(helper, registry).await,
        None => Ok(login.and_then(|login| login.credentials(registry))),
    }
}

/// The answer of a helper program.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// The beginning of the names of such programs.
const HELPER: &str = "docker-credential-";

/// Asks the program `docker-credential-NAME`.
async fn from_helper(name: &str, registry: &str) -> Result<Option<DockerCredentials>, String> {
    let program = format!("{HELPER}{name}");
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut command = tokio::process::Command::new(&program);
    command.arg("get").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::null()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(registry.as_bytes()).await.map_err(failed)?;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    // It says so on stdout that it knows none.
    let Some(Answer { username, secret }) = serde_json::from_slice(&output.stdout).ok() else { return Ok(None) };
    let is_token = username == "<token>";
    Ok(Some(DockerCredentials {
        username: (!is_token).then_some(username),
        password: (!is_token).then(|| secret.clone()),
        identitytoken: is_token.then_some(secret),
        serveraddress: Some(registry.to_owned()),
        ..DockerCredentials::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_a_repository() {
        for (repository, want) in [
            ("registry.lab/pipe", "registry.lab"),
            ("127.0.0.1:5000/team/pipe", "127.0.0.1:5000"),
            ("localhost/pipe", "localhost"),
            ("team/pipe", HUB),
            ("pipe", HUB),
        ] {
            assert_eq!(registry_of(repository), want);
        }
    }

    #[test]
    fn what_docker_login_leaves() {
        let text = r#"{"auths": {"a": {"auth": "eW91OnNlY3JldDox"}, "b": {}}, "credsStore": "pass"}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let login = config.auths["a"].credentials("a").unwrap();
        assert_eq!((login.username.as_deref(), login.password.as_deref()), (Some("you"), Some("secret:1")));
        assert_eq!(config.auths["b"].credentials("b"), None);
        assert_eq!(config.store.as_deref(), Some("pass"));
    }

    #[test]
    fn answers_of_a_push() {
        let mut sent = Sent::default();
        let of = |status: &str, progress: &str| -> PushImageInfo {
            serde_json::from_str(&format!(r#"{{"status": "{status}", "progressDetail": {progress}}}"#)).unwrap()
        };
        assert_eq!(sent.take(&of("Pushing", r#"{"current": 5, "total": 9}"#)), 5);
        assert_eq!(sent.take(&of("Pushing", r#"{"current": 9, "total": 9}"#)), 4);
        assert_eq!(sent.take(&of("Pushed", "{}")), 0);
        sent.take(&of("Layer already exists", "{}"));
        sent.take(&of("1: digest: sha256:ab size: 528", "{}"));
        assert_eq!((sent.layers, sent.present, sent.digest.as_deref()), (1, 1, Some("sha256:ab")));
    }
}
