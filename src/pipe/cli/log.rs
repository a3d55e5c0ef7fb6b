//! Log lines on stderr, as `-v` and RUST_LOG ask for.

use tracing::level_filters::LevelFilter;
use tracing_log::{AsLog, LogTracer};
use tracing_subscriber::EnvFilter;

pub fn to_stderr(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "pipe=debug,trainer=info,info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // It would report on stderr that stderr is closed, and panic.
        .log_internal_errors(false)
        .finish();
    // These clients log whole requests, with tokens and variables in them. RUST_LOG must not show these.
    let bridge = LogTracer::builder().ignore_all(["bollard", "h2", "hyper", "hyper_util", "ureq", "rustls"]);
    if tracing::subscriber::set_global_default(log).is_ok() {
        bridge.with_max_level(LevelFilter::current().as_log()).init().ok();
    }
}
