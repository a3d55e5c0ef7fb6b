//! Finding a daemon that answers, and saying precisely why none does.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bollard::{API_DEFAULT_VERSION, Docker};

use super::Info;
use crate::error::Error;

/// Seconds for one request; a container's log and an image build stream beyond it.
const TIMEOUT: u64 = 120;

pub async fn connect() -> Result<(Docker, Info), Error> {
    let address = address()?;
    let refused = |source: bollard::errors::Error| no_engine(format!("{address}: {source}"), "is the daemon running?");
    let docker = match address.strip_prefix("unix://") {
        Some(path) => Docker::connect_with_unix(path, TIMEOUT, API_DEFAULT_VERSION),
        None => Docker::connect_with_http(&address, TIMEOUT, API_DEFAULT_VERSION),
    }
    .map_err(refused)?;
    let docker = docker.negotiate_version().await.map_err(refused)?;
    let info = docker.info().await.map_err(refused)?;
    let info = Info {
        address: address.clone(),
        version: info.server_version.unwrap_or_default(),
        api_version: docker.client_version().to_string(),
        runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        cdi_spec_dirs: info.cdi_spec_dirs.unwrap_or_default(),
        data_root: info.docker_root_dir,
        rootless: info.security_options.unwrap_or_default().iter().any(|option| option == "name=rootless"),
        limits_memory: info.memory_limit.unwrap_or(true),
    };
    Ok((docker, info))
}

/// `DOCKER_HOST`, or the first socket that a daemon listens on.
fn address() -> Result<String, Error> {
    if let Some(host) = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()) {
        return match host.strip_prefix("unix://") {
            Some(path) => probe(Path::new(path)).map(|()| host.clone()),
            None if host.starts_with("tcp://") || host.starts_with("http://") => Ok(host),
            None => Err(no_engine(
                format!("DOCKER_HOST is {host:?}"),
                "give it as unix:///path/to/docker.sock or tcp://host:port",
            )),
        };
    }
    let mut first_error = None;
    for socket in sockets() {
        match probe(&socket) {
            Ok(()) => return Ok(format!("unix://{}", socket.display())),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| no_engine("no socket to look for".to_owned(), INSTALL)))
}

const INSTALL: &str =
    "install and start Docker or Podman, set DOCKER_HOST, or run without containers: --engine process";

/// Docker's socket, then Podman's, the user's own before the system's.
fn sockets() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("podman/podman.sock"));
    let docker = PathBuf::from("/var/run/docker.sock");
    [docker].into_iter().chain(user).chain([PathBuf::from("/run/podman/podman.sock")]).collect()
}

fn probe(socket: &Path) -> Result<(), Error> {
    let error = match UnixStream::connect(socket) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let at = socket.display();
    Err(match error.kind() {
        ErrorKind::NotFound => no_engine(format!("{at} does not exist"), INSTALL),
        ErrorKind::PermissionDenied => no_engine(
            format!("no permission on {at}"),
            "add yourself to its group (sudo usermod -aG docker $USER, then log in again), or use --engine process",
        ),
        ErrorKind::ConnectionRefused => no_engine(
            format!("{at} is there, but no daemon listens on it"),
            "start the daemon (sudo systemctl start docker), or use --engine process",
        ),
        _ => no_engine(format!("{at}: {error}"), INSTALL),
    })
}

fn no_engine(reason: String, hint: &str) -> Error {
    Error::NoEngine { reason, hint: hint.to_owned() }
}
