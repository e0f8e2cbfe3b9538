//! The binary `weir`; everything is in the library beside it.

fn main() -> std::process::ExitCode {
    cli::main()
}
