//! Every public route, the Functions host's envelopes, and one mapping from errors to problems.

pub mod functions;
