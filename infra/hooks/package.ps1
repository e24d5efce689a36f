# Builds the handler for Azure's Linux and stages the package; `turnwheel package` refuses what Azure could not start.
$ErrorActionPreference = 'Stop'
$PSNativeCommandUseErrorActionPreference = $true
Set-Location (Join-Path $PSScriptRoot '../..')

rustup target add x86_64-unknown-linux-gnu
cargo zigbuild --locked --release --target x86_64-unknown-linux-gnu.2.31
cargo run --locked -- package --out dist --binary target/x86_64-unknown-linux-gnu/release/turnwheel
