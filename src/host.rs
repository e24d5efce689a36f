//! The local development host: drives the handler over loopback as the Functions host does.
