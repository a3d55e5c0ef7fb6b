//! The cards and their links, the trainer, its libtorch, and whether the driver is new enough for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use pipe_spec::text::human_bytes;

use crate::engine::{Check, CheckStatus as Status};
use crate::error::Error;
use crate::gpu::Card;
use crate::image::{self, Cuda, Staged, fetch_cuda, libtorch_version};

/// How long nvidia-smi may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The free memory of a card, and the processes that hold the rest.
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

/// The libtorch that the trainer loads.
pub fn libtorch(card: Option<&Card>) -> Check {
    match image::stage() {
        Ok(staged) => judge(&staged, card),
        Err(error) => Check::failed("libtorch", Status::Missing, &error),
    }
}

fn judge(staged: &Staged, card: Option<&Card>) -> Check {
    let names: Vec<&str> = staged.files.keys().filter_map(|path| path.rsplit('/').next()).collect();
    let torch = staged.files.iter().find(|(name, _)| name.ends_with("/libtorch_cpu.so"));
    let describe = |folder: &Path| format!("{}, {}", folder.display(), libtorch_version(folder));
    let libtorch = torch.and_then(|(_, path)| path.parent()).map_or("none".to_owned(), describe);
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
    match image::prepare_build(None) {
        Ok(build) => {
            let cpu = if matches!(build.cuda, Cuda::Missing { .. }) { ", CPU only" } else { "" };
            let size = human_bytes(build.context.size());
            Check::ok("image", format!("can be built: {} ({size}{cpu})", build.name))
        }
        Err(error) => Check::failed("image", Status::Missing, &error),
    }
}

/// How gradients get from a card to another.
pub fn links(cards: usize) -> Check {
    let unknown = |why: &str| Check::note("links", format!("{cards} cards; what connects them is not known: {why}"));
    let Some(text) = topology() else { return unknown("nvidia-smi topo -m does not answer") };
    match worst_and_best(&text) {
        None => unknown("nvidia-smi topo -m does not list them"),
        Some((Route::NvLink, _)) => Check::ok("links", format!("{cards} cards: NVLink between all of them")),
        Some((worst, best)) => {
            let some = if best == Route::NvLink { "NVLink between some of them" } else { "no NVLink" };
            let check = Check::note("links", format!("{cards} cards: {some}, else {}", worst.describe()));
            check.hint("training works; steps with few samples of each rank wait for the sum of the gradients")
        }
    }
}

/// The library that sums over cards; without it ranks sum in the memory of the host.
pub fn nccl() -> Check {
    let staged = image::stage().ok().filter(|staged| staged.cuda == Cuda::Ready);
    let name = |path: &String| path.rsplit('/').next().filter(|name| name.starts_with("libnccl.so")).map(str::to_owned);
    let Some(staged) = staged else {
        return Check::note("nccl", "libtorch here has no CUDA libraries, and no NCCL with them");
    };
    match staged.files.keys().find_map(name) {
        Some(name) => Check::ok("nccl", format!("{name} beside libtorch")),
        None => Check::note("nccl", "no libnccl.so beside libtorch")
            .hint("several cards then sum gradients in the memory of the host (Gloo), which is slower"),
    }
}

/// The output of `nvidia-smi topo -m`.
fn topology() -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let output =
            Command::new("nvidia-smi").args(["topo", "-m"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
        sender.send(output.ok().filter(|output| output.status.success())).ok();
    });
    let output = receiver.recv_timeout(TIMEOUT).ok()??;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The connection of two cards, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    /// SYS: over PCIe and between the sockets of processors.
    Sockets,
    /// NODE, PHB: over PCIe and a processor.
    Processor,
    /// PXB, PIX: over switches of PCIe.
    Switch,
    NvLink,
}

impl Route {
    fn read(cell: &str) -> Option<Self> {
        match cell {
            "SYS" => Some(Self::Sockets),
            "NODE" | "PHB" => Some(Self::Processor),
            "PXB" | "PIX" => Some(Self::Switch),
            _ if cell.strip_prefix("NV").is_some_and(|links| links.parse::<u32>().is_ok()) => Some(Self::NvLink),
            _ => None,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Sockets => "PCIe between processors (SYS)",
            Self::Processor => "PCIe over a processor (NODE, PHB)",
            Self::Switch => "PCIe over a switch (PXB, PIX)",
            Self::NvLink => "NVLink",
        }
    }
}

/// The slowest and the fastest of the links between two cards in the matrix of `nvidia-smi topo -m`.
fn worst_and_best(text: &str) -> Option<(Route, Route)> {
    let words =
        |line: &str| -> Vec<String> { console::strip_ansi_codes(line).split_whitespace().map(str::to_owned).collect() };
    let is_card = |word: &String| word.strip_prefix("GPU").is_some_and(|index| index.parse::<u32>().is_ok());
    let mut lines = text.lines().map(words).skip_while(|words| !words.first().is_some_and(is_card));
    let cards = lines.next()?.iter().take_while(|word| is_card(word)).count();
    let rows = lines.filter(|words| words.first().is_some_and(is_card)).take(cards);
    let links: Vec<Route> =
        rows.flat_map(|words| words.into_iter().skip(1).take(cards)).filter_map(|cell| Route::read(&cell)).collect();
    Some((*links.iter().min()?, *links.iter().max()?))
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
            (&cuda13, Some("580.65.06"), Status::Ok, "/t/lib, 2.11.0, CUDA 13.0"),
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
            (&cpu, Some("580.1"), Status::Missing, "/t/lib, 2.11.0, CPU only; missing: libcublas.so.13, libcudnn.so.9"),
        ] {
            let check = judge(staged, driver.map(card).as_ref());
            assert_eq!(check.status, status, "{driver:?}: {check:?}");
            assert!(check.found.contains(text), "{driver:?}: {check:?}");
            assert_eq!(check.hint.is_some(), status != Status::Ok, "{check:?}");
        }
    }

    #[test]
    fn matrices() {
        let matrix = |rows: &[&str]| {
            let head = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m\n".to_owned();
            let rows: Vec<String> = (0..).zip(rows).map(|(index, row)| format!("GPU{index}\t{row}\n")).collect();
            format!("{head}{}NIC0\tSYS\tSYS\tSYS\t X\n\nLegend:\n\n  SYS = Connection\n", rows.concat())
        };
        let all =
            matrix(&[" X \tNV18\tNV18\tPIX\t0-31\t0", "NV18\t X \tNV18\tSYS\t0-31", "NV18\tNV18\t X \tSYS\t0-31"]);
        assert_eq!(worst_and_best(&all), Some((Route::NvLink, Route::NvLink)));
        let some = matrix(&[" X \tNV4\tSYS\tPIX", "NV4\t X \tPHB\tSYS", "SYS\tPHB\t X \tSYS"]);
        assert_eq!(worst_and_best(&some), Some((Route::Sockets, Route::NvLink)));
        let none = matrix(&[" X \tPHB\tPIX\tPIX", "PHB\t X \tPIX\tSYS", "PIX\tPIX\t X \tSYS"]);
        assert_eq!(worst_and_best(&none), Some((Route::Processor, Route::Switch)));
        for text in ["", "no devices", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"] {
            assert_eq!(worst_and_best(text), None, "{text:?}");
        }
    }
}
