//! `chat` and the other commands of the terminal, against a real `dev`; `chat` in a pseudo-terminal.

mod bounds;
mod certify;
mod chat;
mod commands;
mod hostile_text;
mod keys;
mod package;
mod program;
mod remedies;
mod screen;
