//! The binary `weir`; all of it is in the library beside it.

fn main() -> std::process::ExitCode {
    cli::main()
}
