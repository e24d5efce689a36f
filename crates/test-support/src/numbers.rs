//! JSON numbers for property tests.

/// Regular expression of JSON numbers: up to 400 digits before and after the point, and exponents of
/// up to 12 digits, also with zeros at the start.
pub const ANY_NUMBER: &str = "-?(0|[1-9][0-9]{0,399})(\\.[0-9]{1,400})?([eE][+-]?[0-9]{1,12})?";
