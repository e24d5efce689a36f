//! The product with no tools but its own.

fn main() -> std::process::ExitCode {
    turnwheel::App::new().main()
}
