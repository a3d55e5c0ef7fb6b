//! The container engine, and how a card gets into its containers.

use std::path::{Path, PathBuf};

use pipe_spec::text::human_bytes;

use super::gpu::Passthrough;
use super::{DockerEngine, Info};
use crate::engine::registry::Host;
use crate::error::Error;
use crate::files::disk::{Space, nearest};
use crate::gpu::Card;
use crate::report::{Check, CheckStatus as Status};

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
    let found = format!("{} {}, API {}, at {}{rootless}", product(info), info.version, info.api_version, info.address);
    match api(&info.api_version) {
        Some(version) if version < OLDEST_API => {
            Check::missing("engine", found).hint("too old: update it to Docker 20.10, Podman 4 or newer")
        }
        _ if !info.limits_memory => Check::note("engine", found)
            .hint("it cannot hold containers to container.memory: have systemd delegate the memory controller to you"),
        _ => Check::ok("engine", found),
    }
}

fn product(info: &Info) -> &'static str {
    if info.address.contains("podman") { "podman" } else { "docker" }
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
mod tests {
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
