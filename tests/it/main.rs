//! All integration tests: one binary, so that the library is linked once.

mod tidy;
