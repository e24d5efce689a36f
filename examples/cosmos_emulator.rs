//! A local Cosmos DB account for development: Microsoft's in-memory emulator behind a socket.
//!
//! `cargo run --example cosmos_emulator -- --port 8081` prints the settings to copy.

use std::io::{self, Write as _};

use clap::Parser;
use turnwheel::testing::azure::cosmos::CONTAINERS;

use turnwheel_cosmos_emulator::{Container, CosmosHost, KEY};

/// Number of physical partitions. A batch in the emulator copies a whole partition, so small
/// partitions make batches faster.
const PARTITIONS: u32 = 64;

/// Run a local Cosmos DB account. Its data is lost when it exits.
#[derive(Debug, Parser)]
struct Arguments {
    /// Port on 127.0.0.1; 0 selects a free port.
    #[arg(long, default_value_t = 8081)]
    port: u16,
    /// Database to create at start.
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
