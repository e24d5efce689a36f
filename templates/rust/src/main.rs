//! An app with a tool in Rust.

use std::process::ExitCode;

use turnwheel::App;

mod refund;

fn main() -> ExitCode {
    App::new().tool(refund::Refund).main()
}
