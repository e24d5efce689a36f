#!/bin/sh
# Stages the package. A Rust project is built first, for Azure's Linux; a folder of agents is packaged by the installed
# `turnwheel`. `turnwheel package` refuses what Azure could not start.
set -eu
cd "$(dirname "$0")/../.."

if [ ! -f Cargo.toml ]; then
  # HANDLER: the program for Azure (Linux, x86-64), where the installed one is for another system.
  exec turnwheel package --out dist ${HANDLER:+--binary "$HANDLER"}
fi

name=$(sed -n '/^\[package\]/,/^\[dep/s/^name *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
if command -v cargo-zigbuild >/dev/null; then
  echo "Building with cargo-zigbuild for glibc 2.31, which every image of the Functions host has."
  rustup target add x86_64-unknown-linux-gnu
  cargo zigbuild --locked --release --target x86_64-unknown-linux-gnu.2.31
  binary=target/x86_64-unknown-linux-gnu/release/$name
else
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || echo "another C library than glibc")
  echo "cargo-zigbuild is not installed: building with cargo against this machine's library ($libc)."
  echo "For glibc 2.31: cargo install cargo-zigbuild && pip install ziglang"
  cargo build --locked --release
  binary=target/release/$name
fi

if [ "$(uname -sm)" = "Linux x86_64" ]; then
  "$binary" package --out dist --binary "$binary"
else
  # A program for this machine packages the other one.
  cargo run --locked -- package --out dist --binary "$binary"
fi
