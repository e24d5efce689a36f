# Stages the package. A Rust project is built first, for Azure's Linux; a folder of agents is packaged by the installed
# `turnwheel`. `turnwheel package` refuses what Azure could not start.
$ErrorActionPreference = 'Stop'
$PSNativeCommandUseErrorActionPreference = $true
Set-Location (Join-Path $PSScriptRoot '../..')

if (-not (Test-Path Cargo.toml)) {
  # HANDLER: the program for Azure (Linux, x86-64); the installed one is for Windows.
  if (-not $env:HANDLER) { throw 'Set HANDLER to the turnwheel program for Linux on x86-64: it goes into the package.' }
  turnwheel package --out dist --binary $env:HANDLER
  return
}

$name = (Select-String -Path Cargo.toml -Pattern '^name *= *"(.*)"' | Select-Object -First 1).Matches[0].Groups[1].Value
Write-Host 'Building with cargo-zigbuild for glibc 2.31, which every image of the Functions host has.'
rustup target add x86_64-unknown-linux-gnu
cargo zigbuild --locked --release --target x86_64-unknown-linux-gnu.2.31
cargo run --locked -- package --out dist --binary "target/x86_64-unknown-linux-gnu/release/$name"
