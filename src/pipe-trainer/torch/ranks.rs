//! Tensors of several processes that become one sum. Every rank makes the same calls in the same order.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::{checked, pointer, pointers, returned};

type Wait = unsafe extern "C" fn(*mut c_void) -> *mut c_char;

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
    fn pipe_ranks_rendezvous(
        place: *const c_char,
        port: u16,
        rank: c_int,
        count: c_int,
        timeout_ms: i64,
        address: *const c_char,
        is_interface: bool,
        card: i64,
        host: *mut *mut c_void,
        device: *mut *mut c_void,
    ) -> *mut c_char;
    fn pipe_ranks_stand_in(
        card: i64,
        bytes_per_ns: f64,
        latency_ns: f64,
        blocks: i64,
        device: *mut *mut c_void,
    ) -> *mut c_char;
    fn pipe_ranks_sum(link: *mut c_void, tensor: *mut C_tensor) -> *mut c_char;
    fn pipe_ranks_broadcast(
        link: *mut c_void,
        tensors: *const *mut C_tensor,
        roots: *const i32,
        count: usize,
    ) -> *mut c_char;
    fn pipe_ranks_ready(link: *mut c_void, ready: *mut bool) -> *mut c_char;
    fn pipe_ranks_done(link: *mut c_void, done: *mut bool) -> *mut c_char;
    fn pipe_ranks_leave(link: *mut c_void) -> *mut c_char;
    fn pipe_ranks_differentiable_sum(
        tensor: *mut C_tensor,
        link: *mut c_void,
        wait: Wait,
        data: *mut c_void,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_buckets_new(
        link: *mut c_void,
        buckets: *const *mut C_tensor,
        bucket_count: usize,
        parameters: *const *mut C_tensor,
        bucket_of: *const usize,
        count: usize,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn pipe_buckets_watch(buckets: *mut c_void, recomputes: bool, overlaps: bool) -> *mut c_char;
    fn pipe_buckets_forget(buckets: *mut c_void) -> *mut c_char;
    fn pipe_buckets_finish(buckets: *mut c_void, early: *mut usize, late: *mut bool) -> *mut c_char;
}

/// Sums the tensors of all ranks. It lives as long as the process: other ranks may be in the middle of a sum when this one ends.
#[derive(Clone, Copy)]
pub struct Link(*mut c_void);

// SAFETY: a link is used by one thread at a time: the one of the backward pass while the other waits for it.
unsafe impl Send for Link {}
unsafe impl Sync for Link {}

/// Where ranks find each other.
#[derive(Clone, Copy, Debug)]
pub enum Rendezvous<'a> {
    /// A file that all of them see.
    File(&'a Path),
    /// The host of the first one, and a port there.
    Host(&'a str, u16),
}

/// Waits for all ranks to come, and returns what sums tensors of the host, and those of `card` where one is given:
/// on a card NCCL, which wants a card of its own for each rank. Gloo listens on an `address` of this machine, or where it `is_interface`,
/// on a network interface of that name.
pub fn rendezvous(
    place: Rendezvous<'_>,
    rank: u32,
    count: u32,
    timeout: Duration,
    (address, is_interface): (&str, bool),
    card: Option<usize>,
) -> Result<(Link, Option<Link>), TchError> {
    let c_string = |text: &str| CString::new(text).map_err(|error| TchError::Torch(error.to_string()));
    let (place, port) = match place {
        Rendezvous::File(path) => (c_string(&path.to_string_lossy())?, 0),
        Rendezvous::Host(host, port) => (c_string(host)?, port),
    };
    let address = c_string(address)?;
    let (mut host, mut device) = (std::ptr::null_mut(), std::ptr::null_mut());
    let card = card.map_or(-1, |card| card as i64);
    // SAFETY: place and address are C strings, and both pointers are valid for a write.
    checked(unsafe {
        pipe_ranks_rendezvous(
            place.as_ptr(),
            port,
            rank as c_int,
            count as c_int,
            timeout.as_millis() as i64,
            address.as_ptr(),
            is_interface,
            card,
            &raw mut host,
            &raw mut device,
        )
    })?;
    Ok((Link(host), (!device.is_null()).then_some(Link(device))))
}

impl Link {
    /// Takes as long as sums over a link of so many bytes in a nanosecond, with so many blocks of threads, and sums nothing.
    pub fn stand_in(card: usize, bytes_per_ns: f64, latency_ns: f64, blocks: u32) -> Result<Self, TchError> {
        let mut device = std::ptr::null_mut();
        // SAFETY: the pointer is valid for a write.
        checked(unsafe { pipe_ranks_stand_in(card as i64, bytes_per_ns, latency_ns, blocks.into(), &raw mut device) })?;
        Ok(Self(device))
    }

    /// Begins to sum a tensor in place.
    pub fn sum(self, tensor: &Tensor) -> Result<(), TchError> {
        // SAFETY: the link is never freed; the other side keeps a handle on the tensor.
        checked(unsafe { pipe_ranks_sum(self.0, pointer(tensor)) })
    }

    /// Begins to give every rank what the `owner` of each tensor has.
    pub fn broadcast(self, tensors: &[&Tensor], owners: &[i32]) -> Result<(), TchError> {
        assert_eq!(tensors.len(), owners.len(), "every tensor has an owner");
        let all = pointers(tensors);
        // SAFETY: as above, and there are as many of both.
        checked(unsafe { pipe_ranks_broadcast(self.0, all.as_ptr(), owners.as_ptr(), all.len()) })
    }

    /// Whether what this rank gives to the sums that were begun is computed.
    pub fn ready(self) -> Result<bool, TchError> {
        let mut ready = false;
        // SAFETY: the pointer is valid for a write.
        checked(unsafe { pipe_ranks_ready(self.0, &raw mut ready) })?;
        Ok(ready)
    }

    /// Whether all that was begun is done.
    pub fn done(self) -> Result<bool, TchError> {
        let mut done = false;
        // SAFETY: as above.
        checked(unsafe { pipe_ranks_done(self.0, &raw mut done) })?;
        Ok(done)
    }

    /// Gives up on what was begun. Nothing can be summed any more.
    pub fn leave(self) {
        // SAFETY: as above. What goes wrong now makes no difference.
        let _ = checked(unsafe { pipe_ranks_leave(self.0) });
    }

    /// The sum of a tensor over all ranks, through which gradients go.
    pub fn differentiable_sum<W: Waits>(self, tensor: &Tensor, waits: &'static W) -> Result<Tensor, TchError> {
        let data = std::ptr::from_ref(waits).cast_mut().cast();
        // SAFETY: `waits` lives for ever, and `wait::<W>` knows its type.
        returned(|out| unsafe { pipe_ranks_differentiable_sum(pointer(tensor), self.0, wait::<W>, data, out) })
    }
}

/// Waits until sums are done.
pub trait Waits: Sync {
    fn wait(&self) -> Result<(), String>;
}

unsafe extern "C" fn wait<W: Waits>(data: *mut c_void) -> *mut c_char {
    // SAFETY: it is what `differentiable_sum` was given.
    let waits = unsafe { &*data.cast::<W>() };
    match waits.wait() {
        Ok(()) => std::ptr::null_mut(),
        // SAFETY: it is a C string; the other side frees the copy.
        Err(message) => unsafe { strdup(CString::new(message.replace('\0', " ")).unwrap_or_default().as_ptr()) },
    }
}

/// Gradients that are summed bucket by bucket, each as soon as it is complete.
pub struct BucketSums(*mut c_void);

impl BucketSums {
    /// The gradients of `parameters` are views of `buckets`, each of the one that `bucket_of` says. The buckets are summed in order.
    pub fn new(link: Link, buckets: &[&Tensor], parameters: &[&Tensor], bucket_of: &[usize]) -> Result<Self, TchError> {
        assert_eq!(parameters.len(), bucket_of.len(), "every parameter is in a bucket");
        let (buckets, parameters) = (pointers(buckets), pointers(parameters));
        let mut out = std::ptr::null_mut();
        // SAFETY: there are as many of each as is said. What is made is never freed: the parameters hold on to it.
        checked(unsafe {
            pipe_buckets_new(
                link.0,
                buckets.as_ptr(),
                buckets.len(),
                parameters.as_ptr(),
                bucket_of.as_ptr(),
                parameters.len(),
                &raw mut out,
            )
        })?;
        Ok(Self(out))
    }

    /// Before the last backward pass of a step. Where `overlaps`, sums begin during it.
    pub fn watch(&self, recomputes: bool, overlaps: bool) -> Result<(), TchError> {
        // SAFETY: the object is never freed.
        checked(unsafe { pipe_buckets_watch(self.0, recomputes, overlaps) })
    }

    /// Watches no more: what is computed next is not summed.
    pub fn forget(&self) -> Result<(), TchError> {
        // SAFETY: as above.
        checked(unsafe { pipe_buckets_forget(self.0) })
    }

    /// After it. Returns how many buckets had begun to be summed by then, or nothing where one of them was added to afterwards: then
    /// the sum is wrong.
    pub fn finish(&self) -> Result<Option<usize>, TchError> {
        let (mut early, mut late) = (0, false);
        // SAFETY: as above.
        checked(unsafe { pipe_buckets_finish(self.0, &raw mut early, &raw mut late) })?;
        Ok((!late).then_some(early))
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// A gradient that is added to more often than before, when its bucket is being summed already, is noticed.
    #[test]
    fn a_late_gradient_is_noticed() {
        let path = std::env::temp_dir().join(format!("pipe-meeting-{}", std::process::id()));
        let (link, device) =
            rendezvous(Rendezvous::File(&path), 0, 1, Duration::from_secs(60), ("lo", true), None).unwrap();
        assert!(device.is_none());
        let weight = Tensor::ones([4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let gradient = Tensor::zeros([4], (Kind::Float, Device::Cpu));
        let buckets = BucketSums::new(link, &[&gradient], &[&weight], &[0]).unwrap();
        let step = |backwards: usize| {
            crate::torch::set_gradient(&weight, Some(&gradient)).unwrap();
            buckets.watch(false, true).unwrap();
            (0..backwards).for_each(|_| (&weight * 2.0).sum(Kind::Float).backward());
            let early = buckets.finish().unwrap();
            while !link.done().unwrap() {}
            early
        };
        assert_eq!(step(1), Some(0), "how often is not known yet");
        assert_eq!(step(1), Some(1), "it begins during the pass");
        assert_eq!(step(3), None, "too late");
        assert_eq!(step(3), Some(1), "known by now");
        buckets.forget().unwrap();
        (&weight * 2.0).sum(Kind::Float).backward();
        assert_eq!(buckets.finish().unwrap(), Some(0));
        while !link.done().unwrap() {}
        let _ = std::fs::remove_file(path);
    }

    /// A product that adds to a gradient by itself, past autograd, begins the sum of its bucket too.
    #[test]
    fn a_product_that_adds_to_a_gradient_is_noticed() {
        let path = std::env::temp_dir().join(format!("pipe-meeting-product-{}", std::process::id()));
        let (link, _) = rendezvous(Rendezvous::File(&path), 0, 1, Duration::from_secs(60), ("lo", true), None).unwrap();
        let weight = Tensor::ones([3, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let gradient = Tensor::zeros([3, 4], (Kind::Float, Device::Cpu));
        let buckets = BucketSums::new(link, &[&gradient], &[&weight], &[0]).unwrap();
        crate::torch::set_gradient(&weight, Some(&gradient)).unwrap();
        for early in [0, 1, 1] {
            buckets.watch(false, true).unwrap();
            let input = Tensor::ones([5, 4], (Kind::BFloat16, Device::Cpu));
            crate::torch::linear(&input, &weight, None).unwrap().sum(Kind::Float).backward();
            assert_eq!(buckets.finish().unwrap(), Some(early));
            while !link.done().unwrap() {}
        }
        assert_eq!(gradient, Tensor::full([3, 4], 15.0, (Kind::Float, Device::Cpu)));
        let _ = std::fs::remove_file(path);
    }
}
