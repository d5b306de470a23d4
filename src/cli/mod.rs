//! The command line: parses, calls the library, prints. Every command has help that teaches and `--json` for
//! machines.

mod output;
mod report;

mod bench;
mod budget;
mod caption;
mod check;
mod classify;
mod demo;
mod demo_captions;
mod devices;
mod features;
mod import;
mod model;
mod order;
mod pretrain;
mod probe;
mod random_step;
mod synthetic;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::error::{Error, Result};
use crate::record::Engine;

/// Trains vision transformers with differential privacy in WGSL compute shaders.
#[derive(Debug, Parser)]
#[command(name = "veilgrad", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Devices(devices::Devices),
    Pretrain(pretrain::Pretrain),
    Probe(probe::ProbeCommand),
    Caption(caption::CaptionCommand),
    Classify(classify::Classify),
    Features(features::Features),
    #[command(name = "fewshot")]
    FewShot(features::FewShot),
    Order(order::Order),
    Import(import::Import),
    Export(import::Export),
    Budget(budget::Budget),
    Synthetic(synthetic::Sheet),
    Check(check::Check),
    Bench(bench::Bench),
    Demo(demo::Demo),
}

/// Where to compute.
#[derive(Clone, Debug, Args)]
struct DeviceArg {
    /// `auto`: a real GPU if there is one, else the CPU engine. `cpu`, `gpu`, or part of an adapter's name
    /// (`veilgrad devices` lists them). Software adapters are taken by name only.
    #[arg(long, default_value = "auto", value_name = "auto|cpu|gpu|NAME")]
    device: String,
}

impl DeviceArg {
    fn open(&self) -> Result<Box<dyn Engine>> {
        devices::open(&self.device)
    }
}

/// Machine-readable output.
#[derive(Clone, Copy, Debug, Args)]
struct JsonArg {
    /// Print one JSON document (long work: one JSON object a line) instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the command line; the exit status is 0, 1 for an error, 2 for wrong usage, 130 when interrupted.
pub fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("VEILGRAD_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Devices(c) => c.run(),
        Command::Pretrain(c) => c.run(),
        Command::Probe(c) => c.run(),
        Command::Caption(c) => c.run(),
        Command::Classify(c) => c.run(),
        Command::Features(c) => c.run(),
        Command::FewShot(c) => c.run(),
        Command::Order(c) => c.run(),
        Command::Import(c) => c.run(),
        Command::Export(c) => c.run(),
        Command::Budget(c) => c.run(),
        Command::Synthetic(c) => c.run(),
        Command::Check(c) => c.run(),
        Command::Bench(c) => c.run(),
        Command::Demo(c) => c.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted(what)) => {
            eprintln!("stopped: {what}");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
