//! The container engine, and how a card gets into its containers.

use std::path::{Path, PathBuf};

use super::check::{Check, Status};
use crate::card::Card;
use crate::engine::docker::gpu::Passthrough;
use crate::engine::docker::{DockerEngine, Info};
use crate::error::Error;

/// Docker 20.10, the oldest that runs were tried with.
const OLDEST_API: (u32, u32) = (1, 41);

/// `trainer` says whether a run could do without containers.
pub fn engine(docker: Result<&DockerEngine, &Error>, trainer: bool) -> Check {
    let info = match docker {
        Ok(engine) => engine.info(),
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
pub fn podman() -> Check {
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
pub fn ways(info: Option<&Info>, card: Option<&Card>) -> Vec<Check> {
    let Some(info) = info else {
        return vec![Check::note(
            "gpu",
            "no engine to pass it through; without containers a run uses the card as it is",
        )];
    };
    let ways = Passthrough::ways(info);
    let first = ways.iter().find(|way| way.1.is_ok()).map(|way| way.0);
    let gpu = match (first, card) {
        (Some(way), _) => Check::ok("gpu", format!("containers get it by {way}")),
        (None, None) => Check::note("gpu", "none, jobs run on the CPU"),
        (None, Some(card)) => {
            Check::missing("gpu", format!("{} is here, and no way leads it into a container", card.name))
                .hint("mend one of the three below, or run without containers: --engine process")
        }
    };
    let names = ["cdi", "runtime", "devices"];
    let checks = ways.into_iter().zip(names).map(|((way, found), name)| match found {
        Ok(found) => Check::ok(name, format!("{way}: {found}")),
        Err(reason) => Check::note(name, format!("{way}: {reason}")),
    });
    std::iter::once(gpu).chain(checks).collect()
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
        let card = Card {
            name: "Test Card".into(),
            driver: "1".into(),
            capability: None,
            total: 1,
            free: 1,
            holders: Vec::new(),
        };
        let status = |info: Option<&Info>, card: Option<&Card>| ways(info, card)[0].status;
        assert_eq!(status(None, Some(&card)), Status::Note);
        let info = Info::default();
        if !Path::new("/dev/nvidiactl").exists() {
            assert_eq!((status(Some(&info), Some(&card)), status(Some(&info), None)), (Status::Missing, Status::Note));
            assert_eq!(ways(Some(&info), None).len(), 4);
        }
    }
}
