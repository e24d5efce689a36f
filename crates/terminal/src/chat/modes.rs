//! Modes of the terminal outside of an input line, and the signals that end a chat.
//!
//! The terminal is in raw mode only while a line is read. A key between two lines has to be the same key: if the kernel
//! turned Enter into Ctrl-J, the next line would end in the middle of the typed text, and its rest would be lost.

use super::status::SharedStatus;

/// Keeps the keys as they are typed, without an echo. Restores the former modes when dropped.
#[cfg(unix)]
pub(super) struct KeyModes {
    /// `None`: the terminal does not report its modes.
    former: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl KeyModes {
    pub(super) fn set() -> Self {
        use rustix::termios::{InputModes, LocalModes, tcgetattr};

        let former = tcgetattr(std::io::stdin()).ok();
        if let Some(former) = &former {
            let mut modes = former.clone();
            modes.input_modes.remove(InputModes::ICRNL);
            // Ctrl-C is still a signal: nothing reads keys here.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            apply(&modes);
        }
        Self { former }
    }
}

#[cfg(unix)]
impl Drop for KeyModes {
    fn drop(&mut self) {
        if let Some(former) = &self.former {
            apply(former);
        }
    }
}

/// Does nothing if the terminal has gone.
#[cfg(unix)]
fn apply(modes: &rustix::termios::Termios) {
    use rustix::termios::{OptionalActions, tcsetattr};

    let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
}

/// Completes after SIGTERM, and after a Ctrl-C that is no key and not for the editor. From this call on they do not end the
/// process, which would keep the modes of the chat.
#[cfg(unix)]
pub(super) fn wait_for_end(status: &SharedStatus) -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};

    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                _ = interrupt.recv() => if !status.is_editing() { return },
                _ = terminate.recv() => return,
            }
        }
    }
}

/// Other systems report keys, not characters.
#[cfg(not(unix))]
pub(super) struct KeyModes;

#[cfg(not(unix))]
impl KeyModes {
    pub(super) fn set() -> Self {
        Self
    }
}

#[cfg(not(unix))]
pub(super) fn wait_for_end(_status: &SharedStatus) -> impl Future<Output = ()> {
    std::future::pending()
}
