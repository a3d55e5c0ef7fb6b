//! The card, the trainer, its libtorch, and whether the driver is new enough for it.

use std::path::PathBuf;

use pipe_spec::text::human_bytes;

use crate::engine::{Check, CheckStatus as Status};
use crate::error::{Error, fetch_cuda};
use crate::gpu::Card;
use crate::image::{self, Cuda, Staged};

/// What is free on the card, and who holds the rest.
pub fn card(card: Option<&Card>) -> Check {
    let Some(card) = card else {
        return Check::note("card", "NVML finds no card");
    };
    let Card { name, driver, capability, total, free, holders, .. } = card;
    let capability = capability.map_or(String::new(), |capability| format!(", compute capability {capability}"));
    let memory = format!("{} free of {}", human_bytes(*free), human_bytes(*total));
    let check = Check::ok("card", format!("{name}, driver {driver}{capability}, {memory}"));
    let unfit = image::libtorch_cuda(None, false).and_then(|library| image::check_card(card, &library).err());
    if let Some(error) = unfit {
        return Check { status: Status::Missing, ..check }.hint(error.to_string());
    }
    let processes: Vec<String> = holders.iter().map(ToString::to_string).collect();
    match processes.is_empty() {
        true => check,
        false => check.hint(format!("held by {}; a run that needs it waits for them", processes.join(", "))),
    }
}

pub fn trainer(found: &Result<PathBuf, Error>) -> Check {
    match found {
        Ok(path) => Check::ok("trainer", path.display().to_string()),
        Err(error) => Check::failed("trainer", Status::Missing, error),
    }
}

/// What the trainer loads.
pub fn libtorch(card: Option<&Card>) -> Check {
    match image::stage() {
        Ok(staged) => judge(&staged, card),
        Err(error) => Check::failed("libtorch", Status::Missing, &error),
    }
}

fn judge(staged: &Staged, card: Option<&Card>) -> Check {
    let names: Vec<&str> = staged.files.keys().filter_map(|path| path.rsplit('/').next()).collect();
    let torch = staged.files.iter().find(|(name, _)| name.ends_with("/libtorch_cpu.so"));
    let libtorch =
        torch.and_then(|(_, path)| path.parent()).map_or("none".to_owned(), |path| path.display().to_string());
    match (&staged.cuda, card) {
        (Cuda::Ready, card) => {
            let version = cuda(&names).unwrap_or_else(|| "of an unknown version".to_owned());
            against_driver(format!("{libtorch}, CUDA {version}"), &version, card)
        }
        (Cuda::Missing { folder, libraries }, Some(card)) => {
            Check::missing("libtorch", format!("{libtorch}, CPU only; missing: {}", libraries.join(", ")))
                .hint(format!("it cannot use {}: {}", card.name, fetch_cuda(folder)))
        }
        (Cuda::Missing { .. }, None) => Check::ok("libtorch", format!("{libtorch}, CPU only")),
        (Cuda::Unknown, _) => Check::note("libtorch", "the trainer does not load it"),
    }
}

fn against_driver(found: String, cuda: &str, card: Option<&Card>) -> Check {
    let least = cuda.split('.').next().and_then(|major| major.parse().ok()).and_then(oldest_driver);
    match (card, least) {
        (None, Some(least)) => Check::ok("libtorch", format!("{found} (a card needs driver {least} or newer)")),
        (Some(card), Some(least)) if major(&card.driver).is_some_and(|driver| driver < least) => {
            Check::missing("libtorch", format!("{found}, which needs driver {least}; this machine has {}", card.driver))
                .hint(format!("update the NVIDIA driver to {least} or newer, or train on the CPU: container.gpus: 0"))
        }
        _ => Check::ok("libtorch", found),
    }
}

/// The version of CUDA, from the names of its libraries. The parts of NVRTC have a longer version than the runtime.
fn cuda(names: &[&str]) -> Option<String> {
    let after = |prefix: &str| names.iter().find_map(|name| name.strip_prefix(prefix)).map(str::to_owned);
    after("libnvrtc-builtins.so.").or_else(|| after("libcudart.so."))
}

/// The oldest driver for Linux that runs programs of this CUDA version.
/// <https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html>
fn oldest_driver(cuda: u32) -> Option<u32> {
    match cuda {
        13 => Some(580),
        12 => Some(525),
        11 => Some(450),
        _ => None,
    }
}

fn major(driver: &str) -> Option<u32> {
    driver.split('.').next()?.parse().ok()
}

/// The trainer image.
pub fn image() -> Check {
    match image::recipe(None) {
        Ok(recipe) => {
            let cpu = if matches!(recipe.cuda, Cuda::Missing { .. }) { ", CPU only" } else { "" };
            let size = human_bytes(recipe.context.size());
            Check::ok("image", format!("can be built: {} ({size}{cpu})", recipe.name))
        }
        Err(error) => Check::failed("image", Status::Missing, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(names: &[&str], cuda: Cuda) -> Staged {
        let staged = |name: &&str| (format!("pipe/libtorch/lib/{name}"), PathBuf::from("/t/lib").join(name));
        Staged { files: names.iter().map(staged).collect(), cuda }
    }

    fn card(driver: &str) -> Card {
        Card { driver: driver.into(), ..Card::example(0) }
    }

    #[test]
    fn the_driver_against_libtorch() {
        let names = ["libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.13", "libnvrtc-builtins.so.13.0"];
        let cuda13 = staged(&names, Cuda::Ready);
        let cuda12 = staged(&["libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.12"], Cuda::Ready);
        let lacks = vec!["libcublas.so.13".to_owned(), "libcudnn.so.9".to_owned()];
        let cpu = staged(&["libtorch_cpu.so"], Cuda::Missing { folder: "/t/lib".into(), libraries: lacks });
        for (staged, driver, status, text) in [
            (&cuda13, None, Status::Ok, "CUDA 13.0 (a card needs driver 580 or newer)"),
            (&cuda13, Some("580.65.06"), Status::Ok, "/t/lib, CUDA 13.0"),
            (
                &cuda13,
                Some("570.86.10"),
                Status::Missing,
                "CUDA 13.0, which needs driver 580; this machine has 570.86.10",
            ),
            (&cuda12, Some("570.86.10"), Status::Ok, "CUDA 12"),
            (&cuda12, Some("470.1"), Status::Missing, "needs driver 525"),
            (&cuda13, Some("strange"), Status::Ok, "CUDA 13.0"),
            (&cpu, None, Status::Ok, "CPU only"),
            (&cpu, Some("580.1"), Status::Missing, "/t/lib, CPU only; missing: libcublas.so.13, libcudnn.so.9"),
        ] {
            let check = judge(staged, driver.map(card).as_ref());
            assert_eq!(check.status, status, "{driver:?}: {check:?}");
            assert!(check.found.contains(text), "{driver:?}: {check:?}");
            assert_eq!(check.hint.is_some(), status != Status::Ok, "{check:?}");
        }
    }
}
