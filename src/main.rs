//! The `veilgrad` command.

fn main() -> std::process::ExitCode {
    veilgrad::cli::main()
}
