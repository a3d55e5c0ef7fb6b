//! Several cards in one training: what connects them, and the library that sums gradients over it.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::engine::Check;
use crate::image::{self, Cuda};

/// How long the driver's tool may take.
const TIMEOUT: Duration = Duration::from_secs(20);

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

/// What the driver's tool prints.
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

/// What two cards are connected by, the slowest first.
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
