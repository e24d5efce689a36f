//! A Cosmos account on this machine, for development: Microsoft's emulator behind a socket, in memory.
//!
//! `cargo run --example cosmos_emulator -- --port 8081` prints the settings to copy.

#[path = "../tests/support/cosmos_emulator.rs"]
mod emulator;

use std::io::{self, Write as _};

use clap::Parser;
use turnwheel::azure::cosmos::CONTAINERS;

use emulator::{Container, CosmosHost, KEY};

/// A batch of the emulator copies a whole physical partition.
const PARTITIONS: u32 = 64;

/// A Cosmos account on this machine; it keeps nothing when it ends.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where to listen on 127.0.0.1; 0 is any free port.
    #[arg(long, default_value_t = 8081)]
    port: u16,
    /// The database that is made at start.
    #[arg(long, default_value = "turnwheel")]
    database: String,
}

fn main() -> io::Result<()> {
    let Arguments { port, database } = Arguments::parse();
    let containers: Vec<Container<'_>> =
        CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
    let mut host = CosmosHost::start(port, &database, &containers, PARTITIONS)?;
    let mut out = io::stdout().lock();
    writeln!(out, "COSMOS__accountEndpoint={}", host.emulator.endpoint)?;
    writeln!(out, "COSMOS__accountKey={KEY}")?;
    writeln!(out, "COSMOS__database={database}")?;
    out.flush()?;
    drop(out);
    host.ended()
}
