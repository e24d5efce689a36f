//! The `turnwheel` program: the application with only its built-in tools.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    turnwheel::App::new().main()
}
