//! Packages of Python that tests of the CI stage `clients` install.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::npm::run;

/// The packages of `docs/clients-python.md`.
const PACKAGES: [&str; 3] = ["httpx==0.28.1", "httpx-sse==0.4.3", "standardwebhooks==1.1.0"];

/// The interpreter of an environment with the packages. They are installed once, for all tests.
pub(crate) fn install_python_packages() -> &'static Path {
    static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python-clients");
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let python = folder.join("bin/python");
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(&python).args(install).args(PACKAGES));
        python
    });
    &PYTHON
}
