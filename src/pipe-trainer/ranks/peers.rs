//! The other ranks of a training, and the address by which they reach this machine.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pipe_spec::trainer::{ADDRESS_VARIABLE, Rank};
use pipe_spec::{Phase, TrainerSpec};
use tch::{Kind, Tensor};

use super::exchange::FirstNode;
use super::notices::Ended;
use super::waiter::Waiter;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::host::Stop;
use crate::session::{Node, job_folder};
use crate::torch::{self, Link, Rendezvous, Waits};

/// Sums end, or a rank that is in their way is found: they have no time of their own.
const SUM_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The file where ranks find each other, where all nodes see one folder.
const RENDEZVOUS: &str = "rendezvous";

/// The other ranks of a training; or nobody.
pub struct Peers {
    pub rank: Rank,
    joined: Option<Joined>,
}

struct Joined {
    waiter: Arc<Waiter>,
    host: Link,
    device: Option<Link>,
}

impl Peers {
    pub fn nobody() -> Self {
        Self { rank: Rank::default(), joined: None }
    }

    /// Waits until all ranks of an attempt are there. Where each has a card of its own, NCCL sums what is there.
    pub fn join(spec: &TrainerSpec, hardware: &Hardware) -> Result<Self, TrainerError> {
        let rank = spec.rank;
        let folder = job_folder(spec).ranks();
        let node = Node::with_rank(spec, rank.index);
        let waiter = Waiter::open(&folder, rank, node)?;
        let card = match hardware.device {
            tch::Device::Cuda(card) if node.size() <= spec.cards => Some(card),
            _ => None,
        };
        let address = Address::find(node)?;
        let path = folder.join(RENDEZVOUS);
        let first = FirstNode::of_environment()?.filter(|_| !node.is_only());
        let place = match &first {
            Some(first) => Rendezvous::Host(&first.host, first.rendezvous_port()),
            None => Rendezvous::File(&path),
        };
        let (host, device) = torch::rendezvous(place, rank.index, rank.count, SUM_TIMEOUT, address.name(), card)?;
        waiter.joined();
        Ok(Self { rank, joined: Some(Joined { waiter: Arc::new(waiter), host, device }) })
    }

    pub fn is_nobody(&self) -> bool {
        self.joined.is_none()
    }

    /// Whether this rank writes what one of them writes: events, checkpoints, the model.
    pub fn leads(&self) -> bool {
        self.rank.index == 0
    }

    /// The library that sums gradients.
    pub fn sums_by(&self) -> Option<&'static str> {
        self.joined.as_ref().map(|joined| if joined.device.is_some() { "nccl" } else { "gloo" })
    }

    /// This rank begins something, after so many completed steps. An error where another rank has ended or all are to stop here; and
    /// where `stop` is requested and this rank `may_leave`: no other can have completed a step more.
    pub fn enter(&self, phase: Phase, step: u64, stop: &Stop, may_leave: bool) -> Result<(), TrainerError> {
        let Some(joined) = &self.joined else { return Ok(()) };
        joined.waiter.heartbeat(phase, step);
        if !may_leave {
            return Ok(());
        }
        joined.waiter.check()?;
        if stop.requested() {
            joined.waiter.notices.stop_after(step);
            return Err(TrainerError::Stopped { step });
        }
        Ok(())
    }

    /// Tells the others why this rank ends.
    pub fn leave(&self, error: &TrainerError, oom: Option<pipe_spec::OomRecord>) {
        let Some(joined) = &self.joined else { return };
        let notices = &joined.waiter.notices;
        if notices.of_others(self.rank.index).is_some() {
            return;
        }
        notices.leave(&Ended { oom: oom.map(Box::new), ..Ended::by(self.rank.index, error) });
    }

    /// Gives up on sums that were begun and cannot be completed: on a card they would keep everything else waiting.
    pub fn abandon(&self) {
        if let Some(device) = self.joined.as_ref().and_then(|joined| joined.device) {
            device.leave();
        }
    }

    /// Whether another rank has ended before this one.
    pub fn another_ended(&self) -> bool {
        let Some(joined) = &self.joined else { return false };
        let notices = &joined.waiter.notices;
        notices.of(self.rank.index).is_none() && notices.of_others(self.rank.index).is_some()
    }

    /// Why another rank has ended.
    pub fn ended(&self, rank: u32) -> Option<Ended> {
        self.joined.as_ref()?.waiter.notices.of(rank)
    }

    fn joined(&self) -> &Joined {
        self.joined.as_ref().expect("there are other ranks")
    }

    /// The link that sums tensors of this device.
    pub fn link(&self, device: tch::Device) -> Link {
        let joined = self.joined();
        joined.device.filter(|_| device.is_cuda()).unwrap_or(joined.host)
    }

    /// Waits for what was begun on the link of this device; `ready` is called when this rank's part of it is there.
    pub fn wait(&self, device: tch::Device, ready: impl FnOnce()) -> Result<(), TrainerError> {
        self.joined().waiter.wait_and(self.link(device), ready)
    }

    /// The numbers of every rank, of which each has as many.
    pub fn gather(&self, own: &[f64]) -> Result<Vec<Vec<f64>>, TrainerError> {
        if self.is_nobody() {
            return Ok(vec![own.to_vec()]);
        }
        let (count, width) = (self.rank.count as usize, own.len());
        let mut all = vec![0.0; count * width];
        all[self.rank.index as usize * width..][..width].copy_from_slice(own);
        let all = Tensor::f_from_slice(&all)?;
        self.sum(&all)?;
        let all = Vec::<f64>::try_from(all)?;
        Ok(all.chunks(width.max(1)).map(<[f64]>::to_vec).collect())
    }

    /// Goes on when all ranks are here.
    pub fn barrier(&self) -> Result<(), TrainerError> {
        self.gather(&[0.0]).map(drop)
    }

    /// The reason behind an error: another rank may have ended, or all are to stop here.
    pub fn behind(&self, error: TrainerError) -> TrainerError {
        match (&self.joined, &error) {
            (Some(joined), TrainerError::Torch { message }) if message.contains("NCCL") => joined.waiter.reason(error),
            (Some(joined), TrainerError::Torch { .. } | TrainerError::Panic { .. }) => {
                joined.waiter.check_now().err().unwrap_or(error)
            }
            _ => error,
        }
    }

    /// Sums a tensor over all ranks, in place. Where all ranks but one have a zero, it is exactly what that one has.
    pub fn sum(&self, tensor: &Tensor) -> Result<(), TrainerError> {
        if self.is_nobody() || tensor.numel() == 0 {
            return Ok(());
        }
        let link = self.link(tensor.device());
        link.sum(tensor)?;
        self.joined().waiter.wait(link)
    }

    /// Gives every rank what the owner of each tensor has.
    pub fn broadcast(&self, tensors: &[&Tensor], owners: &[i32]) -> Result<(), TrainerError> {
        let Some(first) = tensors.first().filter(|_| !self.is_nobody()) else { return Ok(()) };
        let link = self.link(first.device());
        link.broadcast(tensors, owners)?;
        self.joined().waiter.wait(link)
    }

    /// The bytes of the leading rank, on every rank.
    pub fn broadcast_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>, TrainerError> {
        if self.is_nobody() {
            return Ok(bytes);
        }
        let said = if self.leads() { bytes } else { Vec::new() };
        let length = self.gather(&[said.len() as f64])?[0][0] as i64;
        let all = match self.leads() {
            true => Tensor::f_from_slice(&said)?,
            false => Tensor::f_zeros([length], (Kind::Uint8, tch::Device::Cpu))?,
        };
        self.sum(&all)?;
        Ok(Vec::<u8>::try_from(all)?)
    }

    /// Sums of what a model computes inside, for one whose samples are compared with all others of a step.
    pub fn shared_sum(&self, device: tch::Device) -> Option<&'static SharedSum> {
        let joined = self.joined.as_ref()?;
        let shared =
            SharedSum { link: self.link(device), waiter: Arc::clone(&joined.waiter), silent: AtomicBool::new(false) };
        // A training has one, and what is computed with it holds on to it.
        Some(Box::leak(Box::new(shared)))
    }
}

/// A sum over all ranks inside a model.
pub struct SharedSum {
    link: Link,
    waiter: Arc<Waiter>,
    silent: AtomicBool,
}

impl SharedSum {
    /// Gradients go through it.
    pub fn of(&'static self, tensor: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(self.link.differentiable_sum(tensor, self)?)
    }

    /// Whether this rank only takes part in the sums, with samples that do not count.
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }
}

impl Waits for SharedSum {
    fn wait(&self) -> Result<(), String> {
        // Not in the words of the other rank: its out-of-memory is not this one's.
        self.waiter.wait(self.link).map_err(|_| "a sum inside the model was given up".to_owned())
    }
}

/// Gloo's own variable.
const INTERFACE_VARIABLE: &str = "GLOO_SOCKET_IFNAME";

/// The address or interface that Gloo listens on.
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
mod address_tests {
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
