//! Tests of the HTTP API: the real router and driver on in-memory ports, with the scripted model.

mod accepting;
mod artifacts;
mod deciding;
mod deleting;
mod described;
mod elsewhere;
mod faults;
mod files;
mod money;
mod openapi;
mod origins;
mod owners;
mod problems;
mod queued;
mod queueing;
mod results;
mod rig;
mod saying;
mod stopping;
mod strangers;
mod streaming;
mod views;
mod why;
mod wording;
