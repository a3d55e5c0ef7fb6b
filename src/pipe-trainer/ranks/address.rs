//! The address by which ranks reach this machine.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::Path;

use pipe_spec::trainer::ADDRESS_VARIABLE;

use crate::error::TrainerError;
use crate::node::Node;

/// Gloo's own variable.
const INTERFACE_VARIABLE: &str = "GLOO_SOCKET_IFNAME";

/// What Gloo listens on.
#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// A network interface.
    Interface(String),
    /// A name or an IP address of this machine.
    Host(String),
}

impl Address {
    /// On one node, loopback. On several, what the environment says, or else what the name of this machine stands for.
    pub fn find(node: Node) -> Result<Self, TrainerError> {
        if node.is_only() {
            return Ok(Self::Interface("lo".to_owned()));
        }
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let address = match (variable(ADDRESS_VARIABLE), variable(INTERFACE_VARIABLE)) {
            (Some(host), _) => Self::Host(host),
            (None, Some(interface)) => Self::Interface(interface),
            (None, None) => {
                let name = host_name().map_err(|error| no_address("the name of this machine", &error))?;
                if resolve(&name)?.iter().all(IpAddr::is_loopback) {
                    tracing::warn!(
                        "{name} is a loopback address here, which other machines do not reach; set {ADDRESS_VARIABLE}"
                    );
                }
                Self::Host(name)
            }
        };
        address.check()?;
        Ok(address)
    }

    /// Its name, and whether it is that of an interface.
    pub fn name(&self) -> (&str, bool) {
        match self {
            Self::Interface(name) => (name, true),
            Self::Host(name) => (name, false),
        }
    }

    fn check(&self) -> Result<(), TrainerError> {
        match self {
            Self::Host(host) => {
                TcpListener::bind((host.as_str(), 0)).map(drop).map_err(|error| no_address(host, &error))
            }
            Self::Interface(name) if Path::new("/sys/class/net").join(name).exists() => Ok(()),
            Self::Interface(name) => {
                let message = "there is no such network interface";
                Err(no_address(&format!("{INTERFACE_VARIABLE} {name}"), &message))
            }
        }
    }
}

fn resolve(host: &str) -> Result<Vec<IpAddr>, TrainerError> {
    let found = (host, 0).to_socket_addrs().map_err(|error| no_address(host, &error))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn no_address(of: &str, message: &dyn std::fmt::Display) -> TrainerError {
    TrainerError::NoAddress { of: of.to_owned(), message: message.to_string() }
}

fn host_name() -> io::Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the pointer is valid for a write of so many bytes; the last one stays 0.
    if unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_uses_loopback() {
        let node = Node { index: 0, count: 1, all_ranks: 2 };
        assert_eq!(Address::find(node).unwrap(), Address::Interface("lo".to_owned()));
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let host = |name: &str| Address::Host(name.to_owned());
        // The last is an address for documentation, which no machine has.
        for address in [host("no-such-host.invalid"), Address::Interface("no-such".to_owned()), host("192.0.2.1")] {
            assert!(matches!(address.check(), Err(TrainerError::NoAddress { .. })), "{address:?}");
        }
        host("127.0.0.1").check().unwrap();
        Address::Interface("lo".to_owned()).check().unwrap();
    }
}
