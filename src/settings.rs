//! Settings of the app: the only reader of the environment.
