//! Logs: one line a step, no content above debug.
