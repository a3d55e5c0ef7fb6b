//! Finding a daemon that answers, and saying precisely why none does.
//!
//! The container engine, and how a card gets into its containers.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::SystemInfoCgroupVersionEnum;
use bollard::{API_DEFAULT_VERSION, Docker};
use pipe_spec::text::human_bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::gpu::Passthrough;
use super::{DockerEngine, Info};
use crate::engine::{Check, CheckStatus as Status, Host};
use crate::error::Error;
use crate::gpu::Card;
use crate::system::files::{Space, nearest};

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
    let version = docker.version().await.map_err(refused)?;
    let is_podman = version.components.unwrap_or_default().iter().any(|part| part.name.starts_with("Podman"));
    let info = docker.info().await.map_err(refused)?;
    let says_rootless = info.security_options.unwrap_or_default().iter().any(|option| option == "name=rootless");
    let rootless = says_rootless || (is_podman && podman_is_rootless(&address).await);
    // Podman says that it limits memory where no rootless container has a control group.
    let has_groups = !rootless || info.cgroup_version != Some(SystemInfoCgroupVersionEnum::_1);
    let info = Info {
        address: address.clone(),
        product: if is_podman { "podman" } else { "docker" },
        version: info.server_version.unwrap_or_default(),
        api_version: docker.client_version().to_string(),
        runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        cdi_spec_dirs: info.cdi_spec_dirs.unwrap_or_default(),
        data_root: info.docker_root_dir,
        rootless,
        limits_memory: has_groups && info.memory_limit.unwrap_or(true),
    };
    Ok((docker, info))
}

/// A field that Podman 4 has in its answer and Docker has not.
async fn podman_is_rootless(address: &str) -> bool {
    let ask = async {
        let mut socket = UnixStream::connect(address.strip_prefix("unix://")?).await.ok()?;
        socket.write_all(b"GET /v1.41/info HTTP/1.0\r\nHost: podman\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        socket.take(1 << 20).read_to_string(&mut answer).await.ok()?;
        let info: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        info["Rootless"].as_bool()
    };
    tokio::time::timeout(Duration::from_secs(TIMEOUT), ask).await.ok().flatten() == Some(true)
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
    let error = match std::os::unix::net::UnixStream::connect(socket) {
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

/// Room for the trainer image with the CUDA part of libtorch.
const IMAGE_SPACE: u64 = 8 << 30;

/// Docker 20.10, the oldest that runs were tried with.
const OLDEST_API: (u32, u32) = (1, 41);

pub async fn checks(host: &Host) -> Vec<Check> {
    let connected = DockerEngine::connect().await;
    let info = connected.as_ref().ok().map(|engine| &engine.info);
    let mut checks = vec![daemon(connected.as_ref(), host.trainer.is_ok()), podman()];
    checks.extend(ways(info, host.card()));
    checks.extend(disk(info));
    checks
}

/// `trainer` says whether a run could do without containers.
fn daemon(docker: Result<&DockerEngine, &Error>, trainer: bool) -> Check {
    let info = match docker {
        Ok(engine) => &engine.info,
        Err(error) => {
            let status = if trainer { Status::Note } else { Status::Missing };
            return Check::failed("engine", status, error);
        }
    };
    let rootless = if info.rootless { ", rootless" } else { "" };
    let found = format!("{} {}, API {}, at {}{rootless}", info.product, info.version, info.api_version, info.address);
    match api(&info.api_version) {
        Some(version) if version < OLDEST_API => {
            Check::missing("engine", found).hint("too old: update it to Docker 20.10, Podman 4 or newer")
        }
        _ if !info.limits_memory => Check::note("engine", found)
            .hint("it cannot hold containers to container.memory: have systemd delegate the memory controller to you"),
        _ => Check::ok("engine", found),
    }
}

fn api(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Podman's socket, the user's own before the system's.
fn podman() -> Check {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("podman/podman.sock"));
    let sockets = user.into_iter().chain([PathBuf::from("/run/podman/podman.sock")]);
    match sockets.into_iter().find(|socket| socket.exists()) {
        Some(socket) => {
            Check::ok("podman", format!("a socket at {}, used where Docker's does not answer", socket.display()))
        }
        None => Check::note("podman", "no socket")
            .hint("not needed beside Docker; to use it: systemctl --user enable --now podman.socket"),
    }
}

/// Whether a card gets into a container, and by which way; each way with what is there or what it lacks.
fn ways(info: Option<&Info>, card: Option<&Card>) -> Vec<Check> {
    let Some(info) = info else {
        return vec![Check::note("gpu", "no container engine; runs without containers use the card directly")];
    };
    let ways = Passthrough::ways(info);
    let first = ways.iter().find(|way| way.1.is_ok()).map(|way| way.0);
    let gpu = match (first, card) {
        (Some(way), _) => Check::ok("gpu", format!("containers use it through {way}")),
        (None, None) => Check::note("gpu", "none, jobs run on the CPU"),
        (None, Some(card)) => Check::missing("gpu", format!("{} was found, but containers cannot use it", card.name))
            .hint("fix one of the three below, or run without containers: --engine process"),
    };
    let names = ["cdi", "runtime", "devices"];
    let checks = ways.into_iter().zip(names).map(|((way, found), name)| match found {
        Ok(found) => Check::ok(name, format!("{way}: {found}")),
        Err(reason) => Check::note(name, format!("{way}: {reason}")),
    });
    std::iter::once(gpu).chain(checks).collect()
}

/// Where the engine keeps its images, if that is on this machine.
fn disk(info: Option<&Info>) -> Option<Check> {
    let root = info?.data_root.as_deref().filter(|root| !root.is_empty())?;
    let Some(space) = Space::at(nearest(Path::new(root))) else {
        return Some(Check::note("images", format!("unknown for {root}")));
    };
    let found = format!("{} free for images in {root}", human_bytes(space.free));
    Some(match space.free < IMAGE_SPACE {
        true => Check::note("images", found)
            .hint("the trainer image can need 8 GiB: docker system prune, or another data-root in daemon.json"),
        false => Check::ok("images", found),
    })
}

#[cfg(test)]
mod doctor_tests {
    use super::*;

    #[test]
    fn versions_are_no_decimals() {
        assert!(
            api("1.9").unwrap() < OLDEST_API
                && api("1.41").unwrap() == OLDEST_API
                && api("1.100").unwrap() > OLDEST_API
        );
        assert_eq!((api("1"), api(""), api("a.b")), (None, None, None));
    }

    #[test]
    fn a_card_that_no_container_gets_is_missed() {
        let card = Card::example(0);
        let status = |info: Option<&Info>, card: Option<&Card>| ways(info, card)[0].status;
        assert_eq!(status(None, Some(&card)), Status::Note);
        let info = Info::default();
        if !Path::new("/dev/nvidiactl").exists() {
            assert_eq!((status(Some(&info), Some(&card)), status(Some(&info), None)), (Status::Missing, Status::Note));
            assert_eq!(ways(Some(&info), None).len(), 4);
        }
    }
}
