#!/bin/sh
# Builds the handler for Azure's Linux and stages the package; `turnwheel package` refuses what Azure could not start.
set -eu
cd "$(dirname "$0")/../.."

if command -v cargo-zigbuild >/dev/null; then
  # Linked against an old glibc, whatever this machine has.
  rustup target add x86_64-unknown-linux-gnu
  cargo zigbuild --locked --release --target x86_64-unknown-linux-gnu.2.31
  binary=target/x86_64-unknown-linux-gnu/release/turnwheel
else
  cargo build --locked --release
  binary=target/release/turnwheel
fi

if [ "$(uname -sm)" = "Linux x86_64" ]; then
  "$binary" package --out dist --binary "$binary"
else
  # A program for this machine packages the other one.
  cargo run --locked -- package --out dist --binary "$binary"
fi
